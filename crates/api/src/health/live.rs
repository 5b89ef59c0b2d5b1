use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

use crate::body::Json;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Live {
    /// Always `live`: a process that cannot say so does not answer.
    #[schema(example = "live")]
    status: &'static str,
}

/// Whether the process lives.
///
/// Looks at nothing else: a lost database is no reason to restart the process.
#[utoipa::path(get, path = "/health/live", tag = "Health", responses((status = 200, description = "It lives.", body = Live)))]
pub(crate) async fn health_live() -> impl IntoResponse {
    Json(Live { status: "live" })
}
