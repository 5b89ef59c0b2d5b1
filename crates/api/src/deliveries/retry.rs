use axum::response::IntoResponse;
use http::StatusCode;
use postrider_core::{
    id::{DeliveryId, EndpointId, TenantId},
    problem::Code,
    queue,
};
use postrider_store::{
    audit::{Action, Change, Target},
    deliveries::Status,
    retry::{self, Error},
    wake::{self, Call, Caller},
};
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::view::states;
use crate::{authenticate::Developer, body::Json, problem::Problem, request::InPath, state::State};

/// A dead letter that is on its way again.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Retried {
    #[schema(value_type = String, example = "dlv_0192f3a0000070008000000000010001")]
    id: DeliveryId,
    #[schema(schema_with = states)]
    state: &'static str,
}

/// Sends a dead letter again.
///
/// It keeps its id, and its attempts are numbered on; its attempt budget and its deadline restart, and it is signed
/// under the endpoint's current key. While its endpoint is disabled it is held.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/deliveries/{delivery}/retry",
    tag = "Deliveries",
    security(("managementToken" = ["developer"])),
    responses(
        (status = 202, description = "It is queued again.", body = Retried),
        (status = 409, description = "`not_dead_lettered`: the delivery is open or was delivered. \
            `not_retryable`: its endpoint was deleted, its event's body erased, or the registry no longer lists its \
            application for the endpoint."),
    ),
)]
pub(crate) async fn retry_delivery(
    Developer(caller): Developer,
    state: State,
    InPath(id): InPath<DeliveryId>,
) -> Result<impl IntoResponse, Problem> {
    let mut edit = caller.edit(&state).await?;
    let retried = retry::retry(&mut edit, caller.tenant_id, id).await?;
    let change = Change::whole(Action::DeliveryRetried, Target::of_id("delivery", id));
    let status = if let Some(ready) = retried.ready {
        edit.commit_announcing(change, state.audience(), &ready.deliveries).await?;
        call_workers(&state, ready.since, (caller.tenant_id, retried.endpoint_id)).await;
        Status::Pending
    } else {
        edit.commit(change).await?;
        Status::Held
    };
    Ok((StatusCode::ACCEPTED, Json(Retried { id, state: status.as_str() })))
}

/// Lets the queue bring what is pending now; without one, wakes the workers.
async fn call_workers(state: &State, since: OffsetDateTime, endpoint: (TenantId, EndpointId)) {
    if let Some(queue) = queue::usable(state.queue.as_ref()) {
        queue.announced();
        return;
    }
    let call = Call::At { caller: Caller::default(), since, endpoints: vec![endpoint] };
    if let Err(error) = wake::notify_from(&state.pool, call).await {
        // The workers' own polling finds the delivery a little later.
        tracing::debug!(%error, "the workers could not be woken");
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let not_retryable = |detail| Self::new(Code::NotRetryable, detail);
        match error {
            Error::NotFound => Self::not_found(),
            Error::NotDeadLettered => Self::new(
                Code::NotDeadLettered,
                "Only a dead letter can be sent again; this delivery is open or was delivered.",
            ),
            Error::EndpointDeleted => not_retryable("Its endpoint was deleted. Publish the event again."),
            Error::NotListed => not_retryable(
                "The operator's registry no longer lists its application for its endpoint. Ask the operator to list it.",
            ),
            Error::BodyGone => not_retryable("The event's body was erased. Publish the event again."),
            Error::Database(error) => error.into(),
        }
    }
}
