use http::StatusCode;
use postrider_core::id::ReplayId;
use postrider_store::{
    audit::{Action, Change, Target},
    replay::{self, Status},
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{authenticate::Developer, body::Json, problem::Problem, request::InPath, state::State};

/// A replay that has begun.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ReplayExecuted)]
pub(crate) struct Executed {
    #[schema(value_type = String, example = "rpl_0192f3a0000070008000000000030000")]
    id: ReplayId,
    /// `running`
    state: &'static str,
}

/// Executes a replay, once.
///
/// Workers bring the letters back in batches, endpoint by endpoint and only as fast as each takes them. Each letter keeps its
/// id, and its attempts are numbered on; its attempt budget and its deadline restart when it is brought back, and it is
/// signed under the endpoint's current key. While its endpoint is disabled it is held.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/replays/{replay}/execute",
    tag = "Replays",
    security(("managementToken" = ["developer"])),
    responses(
        (status = 202, description = "It runs.", body = Executed),
        (status = 409, description = "`replay_executed`: it runs, or has run. `replay_expired`: it was previewed more than \
            an hour ago. `replay_over`: it was cancelled."),
    ),
)]
pub(crate) async fn execute_replay(
    Developer(caller): Developer,
    state: State,
    InPath(id): InPath<ReplayId>,
) -> Result<(StatusCode, Json<Executed>), Problem> {
    let mut edit = caller.edit(&state).await?;
    replay::execute(&mut edit, caller.tenant_id, id).await?;
    edit.commit(Change::whole(Action::ReplayStarted, Target::of_id("replay", id))).await?;
    Ok((StatusCode::ACCEPTED, Json(Executed { id, state: Status::Running.as_str() })))
}
