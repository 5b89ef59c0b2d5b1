use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Condition, Dependencies, Notes};
use crate::{body::Json, state::State};

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    status: Condition,
    dependencies: Dependencies,
    /// What is different without those that are away, by their names.
    #[serde(skip_serializing_if = "Notes::is_empty")]
    notes: Notes,
}

/// The process and its database, for people.
#[utoipa::path(
    get,
    path = "/health",
    tag = "Health",
    responses(
        (status = 200, description = "All is well.", body = Health),
        (status = 503, description = "The database does not answer, or takes no changes.", body = Health),
    ),
)]
pub(crate) async fn health(state: State) -> Response {
    let dependencies = Dependencies::probe(&state).await;
    let (status, notes) = (dependencies.postgresql, dependencies.notes(&state));
    let code = match status {
        Condition::Up => StatusCode::OK,
        Condition::ReadOnly | Condition::Down => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, Json(Health { status, dependencies, notes })).into_response()
}
