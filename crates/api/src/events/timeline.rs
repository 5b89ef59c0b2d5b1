use postrider_core::id::EventId;
use postrider_store::events;
use serde::Serialize;
use utoipa::ToSchema;

use super::Event;
use crate::{
    authenticate::Viewer,
    body::Json,
    deliveries::{Attempt, Delivery},
    problem::Problem,
    request::InPath,
    state::State,
};

/// An event with what became of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Timeline {
    event: Event,
    /// In the order of the fan-out plan, at most 500.
    deliveries: Vec<Delivery>,
    /// By delivery and number, at most 500.
    attempts: Vec<Attempt>,
    /// There are more deliveries or attempts than are shown.
    truncated: bool,
}

/// Shows an event with its deliveries and their attempts, all of one moment.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/events/{event}/timeline",
    tag = "Events",
    security(("managementToken" = ["viewer"])),
    responses((status = 200, description = "The timeline.", body = Timeline)),
)]
pub(crate) async fn get_event_timeline(
    Viewer(caller): Viewer,
    state: State,
    InPath(id): InPath<EventId>,
) -> Result<Json<Timeline>, Problem> {
    let mut transaction = caller.read(&state).await?;
    let timeline =
        events::timeline(&mut transaction, caller.tenant_id, id).await?.ok_or_else(Problem::not_found)?;
    Ok(Json(Timeline {
        event: timeline.event.into(),
        deliveries: timeline.deliveries.into_iter().map(Delivery::from).collect(),
        attempts: timeline.attempts.into_iter().map(Attempt::from).collect(),
        truncated: timeline.truncated,
    }))
}
