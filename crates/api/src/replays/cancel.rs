use postrider_core::id::ReplayId;
use postrider_store::{
    audit::{Action, Change, Target},
    replay,
};

use super::Replay;
use crate::{authenticate::Developer, body::Json, problem::Problem, request::InPath, state::State};

/// Cancels a replay that runs, or that is not wanted any more.
///
/// Letters that it has brought back stay in the queue; the others stay dead letters.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/replays/{replay}/cancel",
    tag = "Replays",
    security(("managementToken" = ["developer"])),
    responses(
        (status = 200, description = "The replay as it is now.", body = Replay),
        (status = 409, description = "`replay_over`: it is finished or cancelled. `replay_expired`: it was never executed."),
    ),
)]
pub(crate) async fn cancel_replay(
    Developer(caller): Developer,
    state: State,
    InPath(id): InPath<ReplayId>,
) -> Result<Json<Replay>, Problem> {
    let mut edit = caller.edit(&state).await?;
    replay::cancel(&mut edit, caller.tenant_id, id).await?;
    let cancelled = replay::get(&mut edit, caller.tenant_id, id).await?.ok_or_else(Problem::not_found)?;
    edit.commit(Change::whole(Action::ReplayCancelled, Target::of_id("replay", id))).await?;
    Ok(Json(cancelled.try_into()?))
}
