use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Condition, Dependencies};
use crate::{body::Json, state::State};

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ready {
    status: Status,
    dependencies: Dependencies,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// Takes work.
    Ready,
    /// On its way out: finishes what it has and takes nothing new.
    Draining,
    /// A dependency it cannot do without is away.
    Unready,
}

/// Whether the process can work.
///
/// For load balancers. Answers within two seconds also when a dependency hangs.
#[utoipa::path(
    get,
    path = "/health/ready",
    tag = "Health",
    responses(
        (status = 200, description = "It can.", body = Ready),
        (status = 503, description = "It cannot; the state of each dependency says why.", body = Ready),
    ),
)]
pub(crate) async fn health_ready(state: State) -> Response {
    let dependencies = Dependencies::probe(&state).await;
    let status = match (dependencies.postgresql, (state.is_draining)()) {
        (Condition::Down, _) => Status::Unready,
        (Condition::Up, true) => Status::Draining,
        (Condition::Up, false) => Status::Ready,
    };
    let code = match status {
        Status::Ready => StatusCode::OK,
        Status::Draining | Status::Unready => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, Json(Ready { status, dependencies })).into_response()
}
