//! Test events: a signed event to one endpoint, through the ordinary path, so that it proves what it seems to prove.
//! Each tenant has an application of its own that sends them.

use std::num::NonZeroU16;

use axum::response::IntoResponse;
use bytes::Bytes;
use http::StatusCode;
use postrider_core::{
    id::{DeliveryId, EventId},
    name::{EventType, Name},
};
use postrider_store::{
    endpoints,
    ingest::{Refusal, Target},
};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    authenticate::Developer,
    body::Json,
    problem::Problem,
    publish::{Checked, fresh_trace_id, refused, require_room, submit},
    request::InPath,
    state::State,
};

/// The type of every test event.
const EVENT_TYPE: &str = "postrider.test";

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(test_endpoint))
}

/// A test event on its way.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sent {
    #[schema(value_type = String, example = "evt_0192f3a0000070008000000000010000")]
    id: EventId,
    #[schema(value_type = String, example = "dlv_0192f3a0000070008000000000010001")]
    delivery_id: DeliveryId,
}

/// Sends a test event to an endpoint.
///
/// It has the type `postrider.test` and is signed, retried and recorded like any other; read the delivery to see what
/// became of it.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/endpoints/{endpoint}/test",
    tag = "Endpoints",
    security(("managementToken" = ["developer"])),
    responses(
        (status = 202, description = "The test event is durable and on its way.", body = Sent),
        (status = 409, description = "`endpoint_disabled`: the endpoint is disabled."),
    ),
)]
pub(crate) async fn test_endpoint(
    Developer(caller): Developer,
    state: State,
    InPath(name): InPath<Name>,
) -> Result<impl IntoResponse, Problem> {
    require_room(caller.tenant_id, &state)?;
    let endpoint = endpoints::get_by_name(&mut *caller.read(&state).await?, caller.tenant_id, &name).await?;
    let endpoint = endpoint.ok_or_else(Problem::not_found)?;
    let routing = state.routing.system(caller.tenant_id).await?.ok_or_else(Problem::not_found)?;
    // The cached copy may be older than the endpoint.
    let routing = if routing.endpoints.contains_key(&endpoint.id) {
        routing
    } else {
        state.routing.reload(routing.application_id).await?.ok_or_else(Problem::not_found)?
    };
    if !routing.endpoints.contains_key(&endpoint.id) {
        return Err(refused(Refusal::EndpointUnavailable));
    }

    let event_type: EventType = EVENT_TYPE.parse().map_err(|error| Problem::internal(&error))?;
    let body = serde_json::json!({ "type": EVENT_TYPE, "endpointId": name }).to_string();
    let checked = Checked {
        event_type,
        key: None,
        body: Bytes::from(body),
        trace_id: fresh_trace_id()?,
        target: Target::Endpoint(endpoint.id),
    };
    let (submission, answer) = checked.submission(routing, &state);
    let id = submit(submission, answer, &state).await?.event_id;
    Ok((StatusCode::ACCEPTED, Json(Sent { id, delivery_id: id.delivery(NonZeroU16::MIN) })))
}
