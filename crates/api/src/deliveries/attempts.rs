use postrider_core::id::DeliveryId;
use postrider_store::{
    attempts::{self, Outcome},
    deliveries,
};
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::{
    ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

use crate::{
    authenticate::Viewer,
    body::Json,
    page::{List, Page, Wanted},
    problem::Problem,
    request::{InPath, Query},
    state::State,
};

/// One HTTP request of a delivery.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attempt {
    #[schema(value_type = String, example = "dlv_0192f3a0000070008000000000010001")]
    delivery_id: DeliveryId,
    /// Counted from 1 over the delivery's whole life.
    number: u32,
    #[schema(schema_with = outcomes)]
    outcome: &'static str,
    #[serde(with = "time::serde::rfc3339")]
    started_at: OffsetDateTime,
    /// Null while it is under way.
    #[schema(required)]
    #[serde(with = "time::serde::rfc3339::option")]
    ended_at: Option<OffsetDateTime>,
    /// How long the request took, in milliseconds; null where that is not known.
    #[schema(required)]
    latency_ms: Option<u32>,
    /// The receiver's HTTP status; null when no answer came.
    #[schema(required)]
    status_code: Option<u16>,
    /// The kind of failure, such as `timeout`.
    #[schema(required)]
    failure: Option<String>,
    /// The failure in plain words.
    #[schema(required)]
    detail: Option<String>,
    /// The version of the registry that an approved endpoint was asked under; null for an ordinary one.
    #[schema(required)]
    registry_version: Option<i64>,
}

impl From<attempts::Attempt> for Attempt {
    fn from(attempt: attempts::Attempt) -> Self {
        Self {
            delivery_id: attempt.delivery_id,
            number: attempt.number,
            outcome: attempt.outcome.as_str(),
            started_at: attempt.started_at,
            ended_at: attempt.ended_at,
            latency_ms: attempt.latency_ms,
            status_code: attempt.status_code,
            failure: attempt.failure,
            detail: attempt.detail,
            registry_version: attempt.registry_version,
        }
    }
}

fn outcomes() -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(Outcome::ALL.iter().map(|outcome| outcome.as_str())))
        .description(Some(
            "What it led to. `interrupted`: the process that made it vanished, and the receiver may have got the \
             request.",
        ))
        .into()
}

/// Lists a delivery's attempts, newest first.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/deliveries/{delivery}/attempts",
    tag = "Deliveries",
    security(("managementToken" = ["viewer"])),
    params(Wanted),
    responses((status = 200, description = "A page of attempts.", body = List<Attempt>)),
)]
pub(crate) async fn list_attempts(
    Viewer(caller): Viewer,
    state: State,
    InPath(id): InPath<DeliveryId>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Attempt>>, Problem> {
    let page = Page::try_from(wanted)?;
    let mut transaction = caller.read(&state).await?;
    if deliveries::get(&mut transaction, caller.tenant_id, id).await?.is_none() {
        return Err(Problem::not_found());
    }
    let rows = attempts::list(&mut transaction, caller.tenant_id, id, page.slice()).await?;
    Ok(Json(page.list(rows, attempts::Attempt::key, Attempt::from)))
}
