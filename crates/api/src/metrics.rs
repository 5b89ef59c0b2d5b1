//! The metrics, for Prometheus, under a token of their own.

use axum::response::IntoResponse;
use http::header;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{authenticate::Metrics, state::State};

/// The media type of Prometheus' text format.
const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(read_metrics))
}

/// The metrics in Prometheus' text format.
///
/// No label names a tenant or a URL.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "Health",
    security(("metricsToken" = [])),
    responses((status = 200, description = "All metrics.", body = String, content_type = "text/plain")),
)]
pub(crate) async fn read_metrics(_: Metrics, state: State) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, MEDIA_TYPE)], (state.render_metrics)())
}
