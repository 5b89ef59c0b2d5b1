use postrider_core::id::EventId;
use postrider_store::events;

use super::Event;
use crate::{authenticate::Viewer, body::Json, problem::Problem, request::InPath, state::State};

/// Shows an event, without its body.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/events/{event}",
    tag = "Events",
    security(("managementToken" = ["viewer"])),
    responses((status = 200, description = "The event.", body = Event)),
)]
pub(crate) async fn get_event(
    Viewer(caller): Viewer,
    state: State,
    InPath(id): InPath<EventId>,
) -> Result<Json<Event>, Problem> {
    let mut reader = caller.read(&state).await?;
    let event = events::get(&mut reader, caller.tenant_id, id).await?;
    event.map(|event| Json(event.into())).ok_or_else(Problem::not_found)
}
