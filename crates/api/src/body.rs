//! Reading a request's body: never more than its limit, never longer than a bounded time, and only once the caller
//! is known. Every extractor here runs after authentication, because extractors run in the order of a handler's
//! parameters and the body comes last.

use std::{mem, time::Duration};

use axum::{
    body::Body,
    extract::{FromRequest, OptionalFromRequest, Request},
    response::{IntoResponse, Response},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt as _;
use postrider_core::{event, problem::Code};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    misfit::{self, Misfit},
    object::Object,
    problem::Problem,
};

/// Longest body of a management request, in bytes.
pub const MAX_MANAGEMENT_BODY_BYTES: usize = 256 * 1024;

/// Longest time a caller may take to send a body: a slow one must not hold a connection open for ever.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The media types of a body.
const JSON: &[&str] = &["application/json"];

/// The media types of a change: the one made for it, or plain JSON.
const MERGE_PATCH: &[&str] = &["application/merge-patch+json", "application/json"];

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// `413` over the limit (without reading on), `408` when it takes longer than [`BODY_TIMEOUT`], `400` when the
/// connection breaks or the framing is wrong.
pub async fn read(request: Request, limit: usize) -> Result<Bytes, Problem> {
    read_admitted(request, limit, |_held| Ok(())).await
}

/// As [`read`]; before each part of the body is kept, `admit` is asked whether so many bytes may be held for it in all,
/// what is kept free for the next part included.
///
/// # Errors
/// As [`read`], and what `admit` refuses with.
pub(crate) async fn read_admitted(
    request: Request,
    limit: usize,
    admit: impl FnMut(usize) -> Result<(), Problem>,
) -> Result<Bytes, Problem> {
    refuse_announced(&request, limit)?;
    let reading = collect(request.into_body(), limit, admit);
    tokio::time::timeout(BODY_TIMEOUT, reading).await.unwrap_or_else(|_elapsed| {
        Err(Problem::new(
            Code::RequestTimeout,
            format!("The body did not arrive within {} seconds. Send it in one go.", BODY_TIMEOUT.as_secs()),
        ))
    })
}

async fn collect(
    mut body: Body,
    limit: usize,
    mut admit: impl FnMut(usize) -> Result<(), Problem>,
) -> Result<Bytes, Problem> {
    let mut only = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // Trailers say nothing that anybody here asks for.
        let Ok(part) = frame.map_err(|_broken| broken_off())?.into_data() else { continue };
        let held = only.len() + whole.len() + part.len();
        if held > limit {
            return Err(too_large(limit));
        }
        if only.is_empty() && whole.is_empty() {
            // Most bodies come in one part, which needs no copy.
            admit(held)?;
            only = part;
            continue;
        }
        if held > whole.capacity() {
            // As a vector grows, but counted, and never past the limit.
            let capacity = (2 * whole.capacity()).clamp(held, limit);
            admit(capacity)?;
            let mut larger = BytesMut::with_capacity(capacity);
            larger.extend_from_slice(&mem::take(&mut only));
            larger.extend_from_slice(&whole);
            whole = larger;
        }
        whole.extend_from_slice(&part);
    }
    Ok(if whole.is_empty() { only } else { whole.freeze() })
}

fn broken_off() -> Problem {
    Problem::new(
        Code::BadRequest,
        "The body could not be read to its end. Check its length or chunked encoding and send it again.",
    )
}

/// A body that announces to be over the limit is refused before any of it is read. What else it announces is no reason
/// to do anything: an announcement costs its sender nothing.
fn refuse_announced(request: &Request, limit: usize) -> Result<(), Problem> {
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = announced.and_then(|text| text.parse::<u64>().ok());
    if length.is_some_and(|length| usize::try_from(length).unwrap_or(usize::MAX) > limit) {
        Err(too_large(limit))
    } else {
        Ok(())
    }
}

/// Whether the request announces plain JSON: `application/json`, with no parameter but `charset=utf-8`, and not
/// compressed.
///
/// # Errors
/// `415`, with what would be accepted.
pub fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    require(headers, JSON)
}

fn require(headers: &HeaderMap, accepted: &[&str]) -> Result<(), Problem> {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let is_accepted = match (types.next(), types.next()) {
        (Some(value), None) => value.to_str().is_ok_and(|value| is_one_of(accepted, value)),
        _ => false,
    };
    if !is_accepted {
        return Err(not_json(accepted));
    }
    let is_plain =
        headers.get_all(header::CONTENT_ENCODING).iter().all(|value| value.as_bytes() == b"identity");
    if !is_plain {
        return Err(Problem::new(
            Code::UnsupportedMediaType,
            "Compressed bodies are not accepted: send it plain, without `Content-Encoding`.",
        ));
    }
    Ok(())
}

fn not_json(accepted: &[&str]) -> Problem {
    Problem::new(
        Code::UnsupportedMediaType,
        format!("Send the body as JSON, with the header `Content-Type: {}`.", accepted.join("` or `")),
    )
}

fn is_one_of(accepted: &[&str], content_type: &str) -> bool {
    let mut parts = content_type.split(';').map(str::trim);
    parts.next().is_some_and(|essence| accepted.iter().any(|known| essence.eq_ignore_ascii_case(known)))
        && parts.all(|parameter| {
            parameter.eq_ignore_ascii_case("charset=utf-8")
                || parameter.eq_ignore_ascii_case("charset=\"utf-8\"")
        })
}

/// The answer to a body, or a part of one, over its limit.
pub(crate) fn too_large(limit: usize) -> Problem {
    Problem::new(Code::BodyTooLarge, format!("The body is larger than {limit} bytes. Send a smaller one."))
}

/// A JSON object, taken as `T`, or an answer as JSON.
///
/// As an extractor it comes last among a handler's parameters.
#[derive(Debug, Clone, Copy)]
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        read_json(request, MAX_MANAGEMENT_BODY_BYTES).await.map(Self)
    }
}

/// Reads a JSON object of at most `limit` bytes, and takes it as `T`.
pub(crate) async fn read_json<T: DeserializeOwned>(request: Request, limit: usize) -> Result<T, Problem> {
    require_json(request.headers())?;
    parse(&read(request, limit).await?).map(|Object(value)| value)
}

/// Without a content type the body must be empty, and is taken as absent; so is `null`.
impl<S: Send + Sync, T: DeserializeOwned> OptionalFromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Option<Self>, Problem> {
        let is_announced = request.headers().contains_key(header::CONTENT_TYPE);
        if is_announced {
            require_json(request.headers())?;
        }
        let body = read(request, MAX_MANAGEMENT_BODY_BYTES).await?;
        match (body.is_empty(), is_announced) {
            (true, _) => Ok(None),
            (false, true) => {
                parse::<Option<Object<T>>>(&body).map(|value| value.map(|Object(value)| Self(value)))
            }
            (false, false) => Err(not_json(JSON)),
        }
    }
}

/// A JSON merge patch (RFC 7396): under its own media type, or as plain JSON.
#[derive(Debug, Clone, Copy)]
pub struct MergePatch<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for MergePatch<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        require(request.headers(), MERGE_PATCH)?;
        parse(&read(request, MAX_MANAGEMENT_BODY_BYTES).await?).map(|Object(value)| Self(value))
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    event::check_json(body).map_err(|error| Problem::new(Code::InvalidJson, format!("{error}.")))?;
    take(body, "The body")
}

/// Takes JSON of the right syntax as `T`, and names the field that does not fit. `what` begins a sentence about it.
///
/// # Errors
/// `422`, which never repeats the value that does not fit.
pub(crate) fn take<'de, T: Deserialize<'de>>(json: &'de [u8], what: &str) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let Misfit { missing, detail } = misfit::of_json(error.inner());
        // `.` is the JSON as a whole.
        match (path.as_str(), missing) {
            (".", None) => Problem::new(
                Code::InvalidField,
                format!("{what} is not what this operation takes: {detail}."),
            ),
            (".", Some(member)) => Problem::invalid_field(member, detail),
            (_, None) => Problem::invalid_field(path, detail),
            (_, Some(member)) => Problem::invalid_field(format!("{path}.{member}"), detail),
        }
    })
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => {
                let mut response = Response::new(body.into());
                response
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            Err(error) => Problem::internal(&error).into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_in_time_or_breaks_off_is_refused() {
        let part = || stream::iter([Ok(Bytes::from_static(b"{"))]);
        let check = async |body: Body, expected: Code| {
            let problem = read(Request::new(body), 10).await.expect_err("no body");
            assert_eq!(problem.code(), expected);
        };
        check(
            Body::from_stream(part().chain(stream::pending::<std::io::Result<Bytes>>())),
            Code::RequestTimeout,
        )
        .await;
        let broken = stream::iter([Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))]);
        check(Body::from_stream(part().chain(broken)), Code::BadRequest).await;
        check(Body::from("12345678901"), Code::BodyTooLarge).await;
        assert_eq!(read(Request::new(Body::from("1234567890")), 10).await, Ok(Bytes::from("1234567890")));
    }

    #[test]
    fn only_plain_json_is_taken() {
        for (content_type, expected) in [
            ("application/json", true),
            ("Application/JSON; charset=UTF-8", true),
            ("application/json;charset=\"utf-8\"", true),
            ("application/json; charset=latin1", false),
            ("application/json; profile=x", false),
            ("application/problem+json", false),
            ("application/cloudevents+json", false),
            ("text/json", false),
            ("text/plain", false),
            ("", false),
        ] {
            assert_eq!(is_one_of(JSON, content_type), expected, "{content_type:?}");
        }
    }

    #[test]
    fn content_types_that_contradict_each_other_are_refused() {
        let mut headers = HeaderMap::new();
        assert!(require_json(&headers).is_err());
        headers.append(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        assert!(require_json(&headers).is_ok());
        headers.append(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(require_json(&headers).is_err());
        headers.remove(header::CONTENT_ENCODING);
        headers.append(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        assert!(require_json(&headers).is_err());
    }
}
