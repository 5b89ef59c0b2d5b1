//! Editing resources: every change of an application, endpoint or subscription follows the same steps in one
//! transaction, so that no event is planned under what was true before the change was committed.
//!
//! 1. lock the rows of the touched endpoints ([`lock_endpoint`]);
//! 2. then lock the touched applications, sorted, against running ingest ([`lock_exclusive`]);
//! 3. change;
//! 4. raise the version of each touched application ([`raise_versions`]), which makes cached plans stale.
//!
//! Endpoint rows come before applications everywhere, and the credential that an endpoint names or that changes under it
//! before both ([`crate::credentials`]), so two edits never wait for each other in a circle. A new
//! subscription locks its endpoint too: otherwise it could slip between an endpoint edit's look at who subscribes and
//! that edit's commit, and the new subscriber's plan would keep the old endpoint.

use std::ops::{Deref, DerefMut};

use postrider_core::{
    id::{ApplicationId, EndpointId, TenantId},
    queue::Pointer,
};
use sqlx::{PgPool, PgTransaction};
use uuid::Uuid;

use crate::{
    audit::{self, By, Change},
    outbox::{self, Audience},
    wall,
};

/// Editing waits for ingest of the same application, which lasts milliseconds; seconds mean something hangs. What is read
/// after a lock must be what is true then, whatever the database's own default is. A process that stops in the middle of
/// an edit would keep ingest out for as long as it stands still, so its session ends.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
                     SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '10s'; \
                     SET LOCAL idle_in_transaction_session_timeout = '10s'";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the name is taken")]
    NameTaken,
    #[error("no such resource in this tenant")]
    NotFound,
    /// As many as there may be.
    #[error("there are {limit} {what} already")]
    LimitReached { what: &'static str, limit: u32 },
    /// A user of this or of another tenant has it.
    #[error("the e-mail address is taken")]
    EmailTaken,
    #[error("the tenant would be left without an owner")]
    LastOwner,
    #[error("an endpoint names the credential")]
    CredentialInUse,
    #[error("the database refused or did not answer")]
    Database(#[source] sqlx::Error),
}

/// Constraints that a caller's choice of name can break.
const NAMES: &[&str] = &[
    "tenant_names_are_unique",
    "management_key_names_are_unique_in_a_tenant",
    "application_names_are_unique_in_a_tenant",
    "endpoint_names_are_unique_in_a_tenant",
    "subscription_names_are_unique_in_a_tenant",
    "credential_names_are_unique_in_a_tenant",
];

/// The constraint that keeps a credential while an endpoint names it.
const NAMED_CREDENTIAL: &str = "an_endpoint_names_a_known_credential";

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let constraint = error.as_database_error().and_then(sqlx::error::DatabaseError::constraint);
        match constraint {
            Some(name) if NAMES.contains(&name) => Self::NameTaken,
            Some("emails_are_unique") => Self::EmailTaken,
            Some(NAMED_CREDENTIAL) => Self::CredentialInUse,
            _ => Self::Database(error),
        }
    }
}

/// A change that somebody asked for: a transaction that knows who acts.
///
/// Invariant: it is committed with its entry in the audit log or not at all. Dropped, it changes nothing.
#[derive(Debug)]
#[must_use]
pub struct Edit {
    transaction: PgTransaction<'static>,
    tenant_id: Option<TenantId>,
    by: By,
    is_recorded: bool,
}

impl Edit {
    /// A change by a tenant's request, which reaches that tenant's rows only.
    pub async fn of_tenant(pool: &PgPool, tenant_id: TenantId, by: By) -> Result<Self, Error> {
        let transaction = pool.begin_with(wall::within(BEGIN, tenant_id)).await?;
        Ok(Self { transaction, tenant_id: Some(tenant_id), by, is_recorded: false })
    }

    /// A change by whoever runs the installation; `tenant_id` says whose resources it is about.
    pub async fn of_operator(pool: &PgPool, tenant_id: Option<TenantId>, by: By) -> Result<Self, Error> {
        Ok(Self { transaction: begin(pool).await?, tenant_id, by, is_recorded: false })
    }

    /// Records one of several changes.
    pub async fn record(&mut self, change: &Change<'_>) -> Result<(), Error> {
        self.record_for(self.tenant_id, change).await
    }

    /// Records one of several changes, which is about this tenant.
    pub async fn record_for(
        &mut self,
        tenant_id: Option<TenantId>,
        change: &Change<'_>,
    ) -> Result<(), Error> {
        audit::record(&mut self.transaction, tenant_id, &self.by, change).await?;
        self.is_recorded = true;
        Ok(())
    }

    /// Records the change and makes it true.
    pub async fn commit(mut self, change: Change<'_>) -> Result<(), Error> {
        self.record(&change).await?;
        Ok(self.transaction.commit().await?)
    }

    /// Records the change and makes it true, and with it the messages that name what is ready by it. A tenant's request may not
    /// write these: the service does, once the request has nothing more to ask.
    pub async fn commit_announcing(
        mut self,
        change: Change<'_>,
        audience: Audience,
        ready: &[Pointer],
    ) -> Result<(), Error> {
        self.record(&change).await?;
        match (audience, ready) {
            (Audience::Nobody, _) | (Audience::Broker, []) => {}
            (Audience::Broker, [_, ..]) => {
                wall::leave(&mut self.transaction).await?;
                outbox::announce(&mut self.transaction, audience, ready).await?;
            }
        }
        Ok(self.transaction.commit().await?)
    }

    /// Makes true what was recorded one by one; where nothing was, nothing changes.
    pub async fn commit_recorded(self) -> Result<(), Error> {
        if self.is_recorded {
            self.transaction.commit().await?;
        }
        Ok(())
    }
}

impl Deref for Edit {
    type Target = PgTransaction<'static>;

    fn deref(&self) -> &Self::Target {
        &self.transaction
    }
}

impl DerefMut for Edit {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.transaction
    }
}

/// Begins a transaction whose waits are bounded, for changes that nobody asked for. Dropped without `commit`, it changes
/// nothing.
pub async fn begin(pool: &PgPool) -> Result<PgTransaction<'static>, Error> {
    Ok(pool.begin_with(BEGIN).await?)
}

/// Refuses one more than `limit`. The count is exact while the lock that creating takes is held.
pub(crate) fn require_room(count: i64, what: &'static str, limit: u32) -> Result<(), Error> {
    if count < i64::from(limit) { Ok(()) } else { Err(Error::LimitReached { what, limit }) }
}

/// Locks an endpoint's row until the transaction ends, against other edits and against new subscriptions to it.
pub(crate) async fn lock_endpoint(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    endpoint_id: EndpointId,
) -> Result<(), Error> {
    sqlx::query_scalar!(
        "SELECT endpoint_id FROM postrider.endpoints WHERE tenant_id = $1 AND endpoint_id = $2 AND deleted_at IS NULL
            FOR UPDATE",
        tenant_id.as_uuid(),
        endpoint_id.as_uuid(),
    )
    .fetch_optional(&mut **transaction)
    .await?
    .map(drop)
    .ok_or(Error::NotFound)
}

/// The applications whose events may go to an endpoint: those that subscribe, enabled or not, those that may address it,
/// and the tenant's own.
/// Call it with the endpoint locked, or the answer may be out of date.
pub(crate) async fn applications_of(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    endpoint_id: EndpointId,
) -> Result<Vec<ApplicationId>, Error> {
    applications_of_all(transaction, tenant_id, &[endpoint_id.as_uuid()]).await
}

/// The same for several endpoints.
pub(crate) async fn applications_of_all(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    endpoint_ids: &[Uuid],
) -> Result<Vec<ApplicationId>, Error> {
    let ids = sqlx::query_scalar!(
        "SELECT application_id FROM postrider.applications WHERE tenant_id = $1 AND kind = 'system'
         UNION
         SELECT application_id FROM postrider.subscriptions WHERE tenant_id = $1 AND endpoint_id = ANY($2)
         UNION
         SELECT application_id FROM postrider.endpoint_applications WHERE tenant_id = $1 AND endpoint_id = ANY($2)",
        tenant_id.as_uuid(),
        endpoint_ids,
    )
    .fetch_all(&mut **transaction)
    .await?;
    Ok(ids.into_iter().flatten().map(ApplicationId::from_uuid).collect())
}

/// Waits until no ingest of these applications runs, and keeps new ones out until the transaction ends.
///
/// Ingest takes the same advisory locks shared, also sorted by id.
pub(crate) async fn lock_exclusive(
    transaction: &mut PgTransaction<'_>,
    applications: &[ApplicationId],
) -> Result<(), Error> {
    let mut ids: Vec<Uuid> = applications.iter().map(|id| id.as_uuid()).collect();
    ids.sort_unstable();
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(postrider.plan_lock_key(application_id)) FROM unnest($1::uuid[]) AS application_id",
        &ids,
    )
    .fetch_all(&mut **transaction)
    .await?;
    Ok(())
}

/// Keeps the tenant's list of applications from being gone through while one is added to it, until the transaction ends.
pub(crate) async fn announce_application(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
) -> Result<(), Error> {
    sqlx::query!("SELECT pg_advisory_xact_lock_shared(postrider.plan_lock_key($1))", tenant_id.as_uuid())
        .fetch_one(&mut **transaction)
        .await?;
    Ok(())
}

/// All applications of a tenant, its own included. Keeps others from being added until the transaction ends.
pub(crate) async fn lock_all_applications(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
) -> Result<Vec<ApplicationId>, Error> {
    sqlx::query!("SELECT pg_advisory_xact_lock(postrider.plan_lock_key($1))", tenant_id.as_uuid())
        .fetch_one(&mut **transaction)
        .await?;
    let ids = sqlx::query_scalar!(
        "SELECT application_id FROM postrider.applications WHERE tenant_id = $1",
        tenant_id.as_uuid(),
    )
    .fetch_all(&mut **transaction)
    .await?;
    Ok(ids.into_iter().map(ApplicationId::from_uuid).collect())
}

/// Makes every plan for these applications stale. Ingest reads the version after its lock, in a later statement.
pub(crate) async fn raise_versions(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    applications: &[ApplicationId],
) -> Result<(), Error> {
    let ids: Vec<Uuid> = applications.iter().map(|id| id.as_uuid()).collect();
    sqlx::query!(
        "UPDATE postrider.applications SET routing_version = routing_version + 1
          WHERE tenant_id = $1 AND application_id = ANY($2)",
        tenant_id.as_uuid(),
        &ids,
    )
    .execute(&mut **transaction)
    .await?;
    Ok(())
}
