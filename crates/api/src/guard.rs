//! What surrounds every operation: a bound on its time and on how many are worked on at once, a panic that becomes a
//! problem, what is left of its body, the security headers, the counters, and one line in the log at debug level, without
//! query, headers or body.

use std::{
    any::Any,
    panic::AssertUnwindSafe,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use futures::FutureExt as _;
use http::{HeaderValue, Method, header};
use postrider_core::problem::Code;

use crate::{framing, outage::Away, problem::Problem, state::State, unread};

/// Longest time from the head of a request to its answer. Reading a body and waiting for the database have tighter
/// bounds of their own; this one answers for what has none.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(90);

/// Wraps the whole router.
pub(crate) async fn around(state: State, request: Request, next: Next) -> Response {
    let method = request.method().clone();
    // The route's template, never the path itself: a path carries names and ids of tenants.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map_or("unknown", MatchedPath::as_str);
    let began = (state.now)();

    let in_flight = InFlight::count();
    let fuse = Fuse::take(&state, route);
    let framing = framing::check(request.version(), request.headers());
    let is_framed = framing.is_ok();
    let (request, rest) = unread::watch(request);
    let answering = tokio::time::timeout(REQUEST_TIMEOUT, async {
        match (framing, &fuse) {
            (Ok(()), Ok(_)) => next.run(request).await,
            (Ok(()), Err(overloaded)) => overloaded.clone().into_response(),
            (Err(problem), _) => problem.into_response(),
        }
    });
    let mut response = match AssertUnwindSafe(answering).catch_unwind().await {
        Ok(Ok(response)) => response,
        Ok(Err(_elapsed)) => took_too_long(&method, route),
        Err(panic) => panicked(panic.as_ref(), &method, route),
    };
    drop((in_flight, fuse));
    if let Some(away) = response.extensions_mut().remove::<Away>() {
        state.outage().report((state.now)(), &away);
    }

    // Nothing that follows on the connection could be told from the rest of such a request.
    let is_last = !is_framed || !rest.reaches_its_end().await;
    let headers = response.headers_mut();
    if is_last {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Answers hold secrets shown once and tenants' data: no cache on the way may keep them.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));

    let status = response.status();
    metrics::counter!(
        "postrider_http_requests_total",
        "method" => label(&method),
        "route" => route.to_owned(),
        "status" => status.as_str().to_owned(),
    )
    .increment(1);
    let latency_ms = ((state.now)() - began).whole_milliseconds();
    tracing::debug!(%method, route, status = status.as_u16(), latency_ms, "request answered");
    response
}

/// A request that is being worked on, whichever way it ends.
struct InFlight;

impl InFlight {
    fn count() -> Self {
        metrics::gauge!("postrider_http_requests_in_flight").increment(1);
        Self
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        metrics::gauge!("postrider_http_requests_in_flight").decrement(1);
    }
}

/// What tells whether a process is well is answered however much else it has in hand.
const ALWAYS_ANSWERED: [&str; 2] = ["/health", "/metrics"];

/// Where the credential comes in the body, so that a caller may be nobody while it is read. Counted apart: who sends such
/// bodies slowly must not keep those out who have a credential.
const OF_ANYBODY: &str = "/api/auth/";

/// How many requests are being worked on.
#[derive(Debug, Default)]
pub(crate) struct InHand {
    of_known: AtomicU32,
    of_anybody: AtomicU32,
}

/// A request's part of those that may be worked on at once.
struct Fuse<'a>(Option<&'a AtomicU32>);

impl<'a> Fuse<'a> {
    fn take(state: &'a State, route: &str) -> Result<Self, Problem> {
        let is_exempt = ALWAYS_ANSWERED.iter().any(|prefix| route.starts_with(prefix));
        let Some(most) = state.max_requests_in_flight.filter(|_| !is_exempt) else { return Ok(Self(None)) };
        let InHand { of_known, of_anybody } = state.in_hand();
        let in_flight = if route.starts_with(OF_ANYBODY) { of_anybody } else { of_known };
        let fuse = Self(Some(in_flight));
        if in_flight.fetch_add(1, Ordering::Relaxed) < most.get() {
            return Ok(fuse);
        }
        metrics::counter!("postrider_http_requests_over_limit_total").increment(1);
        Err(Problem::new(
            Code::Overloaded,
            "This process has as many requests in hand as it may. Nothing was done; send it again shortly.",
        ))
    }
}

impl Drop for Fuse<'_> {
    fn drop(&mut self) {
        if let Some(in_flight) = self.0 {
            in_flight.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Callers can make up methods; labels must not grow with them.
fn label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

fn took_too_long(method: &Method, route: &str) -> Response {
    tracing::error!(%method, route, "an operation took too long and was given up");
    Problem::new(
        Code::Unavailable,
        "This took too long and was given up; whether it was done is unknown. Look, then try again.",
    )
    .into_response()
}

fn panicked(panic: &(dyn Any + Send), method: &Method, route: &str) -> Response {
    let message = panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message");
    tracing::error!(%method, route, message, "an operation panicked");
    Problem::new(Code::Internal, "Something went wrong on our side; it has been logged. Try again.")
        .into_response()
}

/// No route has this path.
pub(crate) async fn unknown_path() -> Problem {
    Problem::new(
        Code::NotFound,
        "No operation has this address. `GET /openapi.json` describes every operation there is.",
    )
}

/// A route has this path but not this method; the `Allow` header is added by the router.
pub(crate) async fn unknown_method(method: Method) -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        format!("`{method}` does nothing here. The `Allow` header names the methods that do."),
    )
}
