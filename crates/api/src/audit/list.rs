use postrider_core::{id::AuditId, role::Role};
use postrider_store::audit::{self, Action, ActorKind, People};
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::{
    ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

use super::wanted::Wanted;
use crate::{
    authenticate::Viewer, body::Json, database::list_failed, page::List, problem::Problem, request::Query,
    state::State,
};

/// Something that was done, or refused.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AuditEntry)]
pub(crate) struct Entry {
    #[schema(value_type = String, example = "aud_0192f3a0000070008000000000000001")]
    id: AuditId,
    #[serde(with = "time::serde::rfc3339")]
    at: OffsetDateTime,
    actor: Who,
    #[schema(schema_with = actions)]
    action: String,
    target: What,
    /// Names of the members that were given; never their values.
    fields: Vec<String>,
    /// `done` or `refused`.
    outcome: String,
    /// The code of the problem that a refusal was answered with.
    #[schema(required)]
    reason: Option<String>,
    /// The address that the request came from, as far as it is known. Shown to owners alone.
    #[schema(required)]
    address: Option<String>,
}

/// Who acted, under the name of that moment.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditActor)]
pub(crate) struct Who {
    #[schema(schema_with = actor_kinds)]
    kind: String,
    /// The name of a key or application, or the e-mail address of a user, which is shown to owners alone.
    #[schema(required)]
    name: Option<String>,
}

/// What it was done to.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditTarget)]
pub(crate) struct What {
    #[schema(example = "endpoint")]
    kind: String,
    #[schema(required)]
    id: Option<String>,
    /// Its name at that moment. Of a user it is the e-mail address, which is shown to owners alone.
    #[schema(required)]
    name: Option<String>,
}

/// Lists what was done to the tenant's resources and what was refused, newest first.
///
/// Developers and viewers see what was done, and by which keys; e-mail addresses of users and the addresses that requests
/// came from are shown to owners alone, who manage users.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/audit",
    tag = "Audit",
    security(("managementToken" = ["viewer"])),
    params(Wanted),
    responses((status = 200, description = "A page of entries.", body = List<Entry>)),
)]
pub(crate) async fn list_audit(
    Viewer(caller): Viewer,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Entry>>, Problem> {
    let page = wanted.page()?;
    let mut reader = caller.read(&state).await?;
    let people = if caller.role.includes(Role::Owner) { People::Shown } else { People::Withheld };
    let filter = wanted.filter(people);
    let rows =
        audit::list(&mut reader, caller.tenant_id, &filter, page.slice()).await.map_err(list_failed)?;
    Ok(Json(page.list(rows, |entry| entry.id.as_uuid(), Entry::from)))
}

impl From<audit::Entry> for Entry {
    fn from(entry: audit::Entry) -> Self {
        Self {
            id: entry.id,
            at: entry.at,
            actor: Who { kind: entry.actor_kind, name: entry.actor_name },
            action: entry.action,
            target: What { kind: entry.target_kind, id: entry.target_id, name: entry.target_name },
            fields: entry.fields,
            outcome: entry.outcome,
            reason: entry.reason,
            address: entry.address,
        }
    }
}

fn actions() -> RefOr<Schema> {
    one_of(Action::ALL.iter().map(|action| action.as_str()))
}

fn actor_kinds() -> RefOr<Schema> {
    one_of(ActorKind::ALL.iter().map(|kind| kind.as_str()))
}

fn one_of(texts: impl Iterator<Item = &'static str>) -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(texts)).into()
}
