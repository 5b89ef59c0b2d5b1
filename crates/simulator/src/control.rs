//! The routes under `/_/`: they show what arrived and take the secrets that signatures are checked under.
//!
//! Invariant: no route ever shows a secret.

use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use http_body_util::Full;
use serde::{Deserialize, Serialize};

use crate::{
    Shared,
    record::{MAX_REQUESTS_KEPT, Received},
    script::SCRIPTS,
};

/// Requests shown when no limit is asked for.
const DEFAULT_LIMIT: usize = 20;

#[derive(Debug, Serialize)]
struct Shown {
    total: u64,
    requests: Vec<Received>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trusted {
    secret: String,
}

/// Whether a path belongs to the simulator itself rather than to a receiver.
pub(crate) fn is_control(path: &str) -> bool {
    path == "/" || path.starts_with("/_/")
}

/// Answers a control request.
pub(crate) fn answer(
    shared: &Shared,
    method: &Method,
    target: &http::Uri,
    body: &[u8],
) -> Response<Full<Bytes>> {
    match (method, target.path()) {
        (&Method::GET, "/") => text(StatusCode::OK, SCRIPTS),
        (&Method::GET, "/_/requests") => show(shared, target.query()),
        (&Method::DELETE, "/_/requests") => {
            shared.requests.forget();
            text(StatusCode::NO_CONTENT, "")
        }
        (&Method::POST, "/_/secrets") => trust(shared, body),
        _ => text(StatusCode::NOT_FOUND, SCRIPTS),
    }
}

/// A plain text answer.
pub(crate) fn text(status: StatusCode, content: &'static str) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", Bytes::from_static(content.as_bytes()))
}

/// An access token (RFC 6749, section 5.1).
pub(crate) fn token(expires_in_s: u32) -> Response<Full<Bytes>> {
    let token =
        format!(r#"{{"access_token":"simulated","token_type":"Bearer","expires_in":{expires_in_s}}}"#);
    respond(StatusCode::OK, "application/json", token.into())
}

fn show(shared: &Shared, query: Option<&str>) -> Response<Full<Bytes>> {
    let limit = match query.and_then(|query| query.strip_prefix("limit=")) {
        None => DEFAULT_LIMIT,
        Some(asked) => match asked.parse() {
            Ok(limit) if (1..=MAX_REQUESTS_KEPT).contains(&limit) => limit,
            _ => return text(StatusCode::BAD_REQUEST, "limit is a number from 1 to 1000\n"),
        },
    };
    let shown = Shown { total: shared.requests.total(), requests: shared.requests.newest(limit) };
    match serde_json::to_vec_pretty(&shown) {
        Ok(mut json) => {
            json.push(b'\n');
            respond(StatusCode::OK, "application/json", json.into())
        }
        Err(error) => {
            tracing::error!(%error, "the simulator could not write its requests as JSON");
            text(StatusCode::INTERNAL_SERVER_ERROR, "the requests could not be written as JSON\n")
        }
    }
}

fn trust(shared: &Shared, body: &[u8]) -> Response<Full<Bytes>> {
    let Ok(Trusted { secret }) = serde_json::from_slice(body) else {
        return text(StatusCode::UNPROCESSABLE_ENTITY, "send {\"secret\":\"whsec_...\"}\n");
    };
    match shared.trusted.add(&secret) {
        Ok(()) => text(StatusCode::NO_CONTENT, ""),
        Err(error) => {
            let reason = Bytes::from(format!("{error}\n"));
            respond(StatusCode::UNPROCESSABLE_ENTITY, "text/plain; charset=utf-8", reason)
        }
    }
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}
