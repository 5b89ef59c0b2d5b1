//! The audit log: who did what to what, when, from where, and how it ended. Append only, which the database enforces.
//!
//! Invariant: an entry holds names of settings and never their values, so that there is no secret to keep out of it.
//! Changes are recorded in the transaction that makes them ([`crate::edit::Edit`]); what was refused has none.

mod action;
mod actor;

use std::net::IpAddr;

use postrider_core::{
    id::{AuditId, TenantId},
    problem::Code,
};
use sqlx::{PgPool, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

pub use self::{
    action::Action,
    actor::{Actor, ActorKind},
};
use crate::page::Slice;

/// Who acts, and from where.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct By {
    pub actor: Actor,
    /// As far as that is known: a command has none.
    pub address: Option<IpAddr>,
}

/// What something was done to: its kind, its printed id and the name people gave it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub kind: &'static str,
    pub id: Option<String>,
    pub name: Option<String>,
}

/// A change.
#[derive(Debug)]
pub struct Change<'a> {
    pub action: Action,
    pub target: Target,
    /// Names of what was given, as the API spells them.
    pub fields: &'a [&'a str],
}

/// An attempt that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// Whose credential it was; `None` where that is not known.
    pub tenant_id: Option<TenantId>,
    pub by: By,
    pub action: Action,
    pub target: Target,
    pub reason: Code,
}

/// An entry as it is read.
#[derive(Debug)]
pub struct Entry {
    pub id: AuditId,
    pub at: OffsetDateTime,
    pub actor_kind: String,
    pub actor_name: Option<String>,
    pub action: String,
    pub target_kind: String,
    pub target_id: Option<String>,
    pub target_name: Option<String>,
    pub fields: Vec<String>,
    pub outcome: String,
    pub reason: Option<String>,
    pub address: Option<String>,
}

/// Which entries are wanted.
#[derive(Debug, Default)]
pub struct Filter {
    pub action: Option<Action>,
    /// The name of a key, or the e-mail address of a user.
    pub actor: Option<String>,
    pub since: Option<OffsetDateTime>,
    pub until: Option<OffsetDateTime>,
    pub people: People,
}

/// Whether entries say who of the tenant's users it was, and from where they and others came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum People {
    /// Users have no e-mail address and nobody has an address; an actor's e-mail address finds nothing.
    #[default]
    Withheld,
    Shown,
}

#[expect(clippy::needless_pass_by_value, reason = "ids are copied, and names go by reference")]
impl Target {
    /// Something with an id and a name.
    pub fn new(kind: &'static str, id: impl ToString, name: impl ToString) -> Self {
        Self { kind, id: Some(id.to_string()), name: Some(name.to_string()) }
    }

    /// Something that has only a name.
    pub fn named(kind: &'static str, name: impl ToString) -> Self {
        Self { kind, id: None, name: Some(name.to_string()) }
    }

    /// Something that has only an id.
    pub fn of_id(kind: &'static str, id: impl ToString) -> Self {
        Self { kind, id: Some(id.to_string()), name: None }
    }
}

impl Change<'_> {
    /// Something was rotated or removed as a whole: nothing was given.
    pub const fn whole(action: Action, target: Target) -> Self {
        Self { action, target, fields: &[] }
    }
}

/// Records a change within its own transaction.
pub(crate) async fn record(
    transaction: &mut PgTransaction<'_>,
    tenant_id: Option<TenantId>,
    by: &By,
    change: &Change<'_>,
) -> Result<(), sqlx::Error> {
    let fields: Vec<String> = change.fields.iter().map(|&field| field.to_owned()).collect();
    sqlx::query!(
        "INSERT INTO postrider.audit_log (tenant_id, actor_kind, actor_id, actor_name, action, target_kind, target_id,
                                          target_name, fields, outcome, address)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'done', $10)",
        tenant_id.map(TenantId::as_uuid),
        by.actor.kind().as_str(),
        by.actor.id(),
        by.actor.name(),
        change.action.as_str(),
        change.target.kind,
        change.target.id,
        change.target.name,
        &fields,
        by.address.map(|address| address.to_string()),
    )
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

/// Records refusals, in one statement.
pub async fn record_refusals(pool: &PgPool, refusals: &[Refusal]) -> Result<(), sqlx::Error> {
    let column = |of: fn(&Refusal) -> Option<String>| refusals.iter().map(of).collect::<Vec<_>>();
    let tenants: Vec<Option<Uuid>> =
        refusals.iter().map(|refusal| refusal.tenant_id.map(TenantId::as_uuid)).collect();
    let mut transaction = pool.begin().await?;
    let actors: Vec<Option<Uuid>> = refusals.iter().map(|refusal| refusal.by.actor.id()).collect();
    sqlx::query!(
        "INSERT INTO postrider.audit_log (tenant_id, actor_kind, actor_id, actor_name, action, target_kind, target_id,
                                          target_name, reason, address, outcome)
         SELECT refusal.*, 'refused'
           FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                       $9::text[], $10::text[]) AS refusal",
        &tenants as _,
        &column(|refusal| Some(refusal.by.actor.kind().as_str().to_owned())) as _,
        &actors as _,
        &column(|refusal| refusal.by.actor.name().map(str::to_owned)) as _,
        &column(|refusal| Some(refusal.action.as_str().to_owned())) as _,
        &column(|refusal| Some(refusal.target.kind.to_owned())) as _,
        &column(|refusal| refusal.target.id.clone()) as _,
        &column(|refusal| refusal.target.name.clone()) as _,
        &column(|refusal| Some(refusal.reason.as_str().to_owned())) as _,
        &column(|refusal| refusal.by.address.map(|address| address.to_string())) as _,
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await
}

/// A tenant's entries, newest first, by id. Call it inside [`crate::page::begin_read`].
///
/// What is withheld is not read at all, so that no filter finds it.
pub async fn list(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    filter: &Filter,
    slice: Slice,
) -> Result<Vec<Entry>, sqlx::Error> {
    let rows = sqlx::query!(
        "SELECT audit_id, at, actor_kind, CASE WHEN $8 OR actor_kind <> 'user' THEN actor_name END AS actor_name, action,
                target_kind, target_id, CASE WHEN $8 OR target_kind <> 'user' THEN target_name END AS target_name, fields,
                outcome, reason, CASE WHEN $8 THEN address END AS address
           FROM postrider.audit_log
          WHERE tenant_id = $1 AND ($2::uuid IS NULL OR audit_id < $2)
            AND ($3::text IS NULL OR action = $3)
            AND ($4::text IS NULL OR (actor_name = $4 AND ($8 OR actor_kind <> 'user')))
            AND ($5::timestamptz IS NULL OR at >= $5) AND ($6::timestamptz IS NULL OR at < $6)
          ORDER BY audit_id DESC LIMIT $7",
        tenant_id.as_uuid(),
        slice.before,
        filter.action.map(Action::as_str),
        filter.actor,
        filter.since,
        filter.until,
        slice.rows,
        filter.people == People::Shown,
    )
    .fetch_all(&mut **transaction)
    .await?;
    let entries = rows.into_iter().map(|row| Entry {
        id: row.audit_id.into(),
        at: row.at,
        actor_kind: row.actor_kind,
        actor_name: row.actor_name,
        action: row.action,
        target_kind: row.target_kind,
        target_id: row.target_id,
        target_name: row.target_name,
        fields: row.fields,
        outcome: row.outcome,
        reason: row.reason,
        address: row.address,
    });
    Ok(entries.collect())
}
