//! What surrounds every operation: a panic becomes a problem, answers carry the security headers, and each request
//! leaves one line in the log at debug level, without its query, headers or body.

use std::{any::Any, panic::AssertUnwindSafe};

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use futures::FutureExt as _;
use http::{HeaderValue, Method, header};
use postrider_core::problem::Code;

use crate::{problem::Problem, state::State};

/// Wraps the whole router.
pub(crate) async fn around(state: State, request: Request, next: Next) -> Response {
    let method = request.method().clone();
    // The route's template, never the path itself: a path carries names and ids of tenants.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let began = (state.now)();

    let mut response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => panicked(panic.as_ref(), &method, route.as_ref()),
    };

    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Answers hold secrets shown once and tenants' data: no cache on the way may keep them.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));

    tracing::debug!(
        %method,
        route = route.as_ref().map(MatchedPath::as_str),
        status = response.status().as_u16(),
        latency_ms = ((state.now)() - began).whole_milliseconds(),
        "request answered"
    );
    response
}

fn panicked(panic: &(dyn Any + Send), method: &Method, route: Option<&MatchedPath>) -> Response {
    let message = panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message");
    tracing::error!(%method, route = route.map(MatchedPath::as_str), message, "an operation panicked");
    Problem::new(Code::Internal, "Something went wrong on our side; it has been logged. Try again.")
        .into_response()
}

/// No route has this path.
pub(crate) async fn unknown_path() -> Problem {
    Problem::not_found()
}

/// A route has this path but not this method; the `Allow` header is added by the router.
pub(crate) async fn unknown_method(method: Method) -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        format!("`{method}` does nothing here. The `Allow` header names the methods that do."),
    )
}
