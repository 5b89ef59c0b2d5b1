use postrider_store::events;

use super::{Event, wanted::Wanted};
use crate::{
    authenticate::Viewer, body::Json, database::list_failed, page::List, problem::Problem, request::Query,
    state::State,
};

/// Lists events, newest first.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/events",
    tag = "Events",
    security(("managementToken" = ["viewer"])),
    params(Wanted),
    responses((status = 200, description = "A page of events.", body = List<Event>)),
)]
pub(crate) async fn list_events(
    Viewer(caller): Viewer,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Event>>, Problem> {
    let page = wanted.page()?;
    let mut transaction = caller.read(&state).await?;
    let rows = events::list(&mut transaction, caller.tenant_id, &wanted.filter(), page.slice())
        .await
        .map_err(list_failed)?;
    Ok(Json(page.list(rows, |event| event.id.as_uuid(), Event::from)))
}
