use postrider_core::id::ReplayId;
use postrider_store::replay;

use super::Replay;
use crate::{authenticate::Viewer, body::Json, problem::Problem, request::InPath, state::State};

/// Shows a replay and how far it is.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/replays/{replay}",
    tag = "Replays",
    security(("managementToken" = ["viewer"])),
    responses((status = 200, description = "The replay.", body = Replay)),
)]
pub(crate) async fn get_replay(
    Viewer(caller): Viewer,
    state: State,
    InPath(id): InPath<ReplayId>,
) -> Result<Json<Replay>, Problem> {
    let mut reader = caller.read(&state).await?;
    let replay = replay::get(&mut reader, caller.tenant_id, id).await?.ok_or_else(Problem::not_found)?;
    Ok(Json(replay.try_into()?))
}
