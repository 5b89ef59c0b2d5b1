use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Condition, Dependencies, Notes};
use crate::{body::Json, state::State};

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ready {
    status: Status,
    /// Why it cannot work, where it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    dependencies: Dependencies,
    /// What is different without those that are away, by their names.
    #[serde(skip_serializing_if = "Notes::is_empty")]
    notes: Notes,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// Takes work.
    Ready,
    /// Takes work, without a dependency that it can do without; `notes` say what is different.
    Degraded,
    /// On its way out: finishes what it has and takes nothing new.
    Draining,
    /// A dependency it cannot do without is away or does not do its part.
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
        (status = 200, description = "It can; `degraded`: without something that it can do without.", body = Ready),
        (status = 503, description = "It cannot; `reason` says why.", body = Ready),
    ),
)]
pub(crate) async fn health_ready(state: State) -> Response {
    let dependencies = Dependencies::probe(&state).await;
    let notes = dependencies.notes(&state);
    let (status, reason) = match (dependencies.postgresql, (state.is_draining)()) {
        (Condition::Down, _) => (Status::Unready, Some("PostgreSQL does not answer.")),
        (Condition::ReadOnly, _) => (
            Status::Unready,
            Some("PostgreSQL is read-only, as a standby is: it takes no changes. Connect to the primary."),
        ),
        (Condition::Up, true) => (Status::Draining, Some("The process is stopping.")),
        (Condition::Up, false) if notes.is_empty() => (Status::Ready, None),
        (Condition::Up, false) => (Status::Degraded, None),
    };
    let code = match status {
        Status::Ready | Status::Degraded => StatusCode::OK,
        Status::Draining | Status::Unready => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, Json(Ready { status, reason, dependencies, notes })).into_response()
}
