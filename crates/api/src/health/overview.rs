use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Condition, Dependencies};
use crate::{body::Json, state::State};

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    status: Condition,
    dependencies: Dependencies,
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
    let status = dependencies.postgresql;
    let code = match status {
        Condition::Up => StatusCode::OK,
        Condition::ReadOnly | Condition::Down => StatusCode::SERVICE_UNAVAILABLE,
    };
    (code, Json(Health { status, dependencies })).into_response()
}
