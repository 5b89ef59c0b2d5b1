use postrider_store::replay;

use super::Replay;
use crate::{
    authenticate::Viewer,
    body::Json,
    page::{List, Page, Wanted},
    problem::Problem,
    request::Query,
    state::State,
};

/// Lists replays, newest first.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/replays",
    tag = "Replays",
    security(("managementToken" = ["viewer"])),
    params(Wanted),
    responses((status = 200, description = "A page of replays.", body = List<Replay>)),
)]
pub(crate) async fn list_replays(
    Viewer(caller): Viewer,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Replay>>, Problem> {
    let page = Page::try_from(wanted)?;
    let mut reader = caller.read(&state).await?;
    let rows = replay::list(&mut reader, caller.tenant_id, page.slice()).await?;
    let replays = rows.into_iter().map(Replay::try_from).collect::<Result<Vec<_>, _>>()?;
    Ok(Json(page.list(replays, |replay| replay.id.as_uuid(), |replay| replay)))
}
