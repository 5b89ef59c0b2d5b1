//! Every error a caller sees: RFC 9457 problem details with a stable code from one closed list.
//!
//! A problem's text says what to do. It never carries a secret, a token or a body, and what went wrong inside is
//! logged once, here, and not told.

use std::{error::Error, fmt::Write as _};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{HeaderName, HeaderValue, StatusCode, header};
use postrider_core::problem::Code;
use serde::Serialize;
use utoipa::ToSchema;

use crate::outage::Away;

/// The media type of problem details (RFC 9457, section 3).
pub const MEDIA_TYPE: &str = "application/problem+json";

/// The address that a code's `type` member is built on.
pub const TYPE_BASE: &str = "https://postrider.dev/problems/";

/// How long a caller should wait after a refusal that passes by itself.
pub const RETRY_AFTER_SECONDS: u16 = 1;

/// As many characters of a caller's own word are repeated to them.
const MAX_QUOTED_CHARACTERS: usize = 64;

/// Longest text of a problem, in characters, whatever it repeats.
const MAX_DETAIL_CHARACTERS: usize = 2_048;

/// One refused field of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// Path of the field, such as `retry.maxAttempts`.
    pub field: String,
    /// What is wrong with it, and what would be accepted.
    pub detail: String,
}

/// An answer that is not a success.
///
/// Boxed: a handler's `Result` is as small as its success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem(Box<Parts>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Parts {
    code: Code,
    detail: String,
    errors: Vec<FieldError>,
    /// Why the database refused, for the log.
    cause: Option<String>,
    /// How long to wait, where that is known better than [`RETRY_AFTER_SECONDS`].
    retry_after_seconds: Option<u32>,
    /// Further headers of the answer.
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Problem details (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct Document<'a> {
    /// Identifies the kind of problem; always `https://postrider.dev/problems/` followed by `code`.
    #[schema(example = "https://postrider.dev/problems/not_found")]
    r#type: String,
    /// The kind of problem in a few words.
    title: &'a str,
    /// The HTTP status, repeated.
    status: u16,
    /// What happened in this case, and what to do about it.
    detail: &'a str,
    /// The kind of problem as a stable word for programs.
    code: &'a str,
    /// The refused fields, where there are any.
    #[serde(skip_serializing_if = "<[FieldError]>::is_empty")]
    #[schema(value_type = Option<Vec<FieldError>>)]
    errors: &'a [FieldError],
}

impl Problem {
    /// `detail` says what happened in this case and what to do about it.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let detail = shortened(detail.into(), MAX_DETAIL_CHARACTERS);
        Self(Box::new(Parts {
            code,
            detail,
            errors: Vec::new(),
            cause: None,
            retry_after_seconds: None,
            headers: Vec::new(),
        }))
    }

    /// Nothing there under this address, or nothing that the caller may know of.
    pub fn not_found() -> Self {
        Self::new(Code::NotFound, "There is nothing here under this address. Check the ids in the path.")
    }

    /// A body that is JSON but not what the operation takes, for one field's sake.
    pub fn invalid_field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        let (field, detail) = (quoted(field), detail.into());
        Self::new(Code::InvalidField, format!("`{field}`: {detail}.")).with_field(field, detail)
    }

    /// Adds a refused field.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>, detail: impl Into<String>) -> Self {
        let detail = shortened(detail.into(), MAX_DETAIL_CHARACTERS);
        self.0.errors.push(FieldError { field: quoted(field), detail });
        self
    }

    /// Says how long to wait before another try.
    #[must_use]
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.0.retry_after_seconds = Some(seconds);
        self
    }

    /// Adds a header to the answer.
    #[must_use]
    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.push((name, value));
        self
    }

    /// A fault of ours. Logs the whole chain of causes; the caller learns only that there was one.
    pub fn internal(error: &dyn Error) -> Self {
        tracing::error!(error = chain(error), "a request failed inside");
        Self::new(Code::Internal, "Something went wrong on our side; it has been logged. Try again.")
    }

    /// The database does not answer: told as something that passes, and logged with the answer, in few words.
    pub fn database_unavailable(error: &dyn Error) -> Self {
        let mut problem = Self::new(
            Code::Unavailable,
            "The database does not answer, or not in time. Try again shortly; look first whether a change was made.",
        );
        problem.0.cause = Some(chain(error));
        problem
    }

    pub fn code(&self) -> Code {
        self.0.code
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(crate) fn document(&self) -> Document<'_> {
        let Parts { code, detail, errors, cause: _, retry_after_seconds: _, headers: _ } = &*self.0;
        Document {
            r#type: format!("{TYPE_BASE}{}", code.as_str()),
            title: code.title(),
            status: code.status(),
            detail,
            code: code.as_str(),
            errors,
        }
    }
}

/// A caller's own word as it is repeated to them: as much of it as tells which one is meant.
pub(crate) fn quoted(text: impl Into<String>) -> String {
    shortened(text.into(), MAX_QUOTED_CHARACTERS)
}

fn shortened(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// An error and its causes on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a string cannot fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        // Strings and numbers always serialise.
        let body = serde_json::to_vec(&self.document()).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let Parts { cause, retry_after_seconds, headers: further, code: _, detail: _, errors: _ } = *self.0;
        if let Some(cause) = cause {
            response.extensions_mut().insert(Away(cause));
        }
        let headers = response.headers_mut();
        headers.extend(further);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        match status {
            // RFC 9110, section 11.6.1: a 401 names the scheme that would be accepted.
            StatusCode::UNAUTHORIZED => {
                headers
                    .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"postrider\""));
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                let seconds = retry_after_seconds.unwrap_or(RETRY_AFTER_SECONDS.into());
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            // The rest of the body is unread: the connection cannot carry another request.
            StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callers_wrote_is_repeated_in_part_only() {
        let short = "é".repeat(64);
        let problem = Problem::invalid_field(short.clone(), "unknown");
        assert_eq!(problem.document().detail, format!("`{short}`: unknown."));
        let long = "é".repeat(4_000_000);
        let problem = Problem::invalid_field(long.clone(), "unknown").with_field(long.clone(), long.clone());
        assert_eq!(problem.document().detail, format!("`{short}…`: unknown."));
        assert!(problem.document().errors.iter().all(|error| error.field == format!("{short}…")));
        assert!(format!("{problem:?}").len() < 8_192);
        assert!(format!("{:?}", Problem::new(Code::BadRequest, long)).len() < 8_192);
    }
}
