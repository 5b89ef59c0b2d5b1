//! What a handler reads from a request's line: the last part of the path, and the query.

use std::{borrow::Cow, fmt, str::FromStr};

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;
use postrider_core::problem::Code;
use serde::{Deserialize as _, Deserializer, de::DeserializeOwned};

use crate::{
    misfit,
    problem::{Problem, quoted},
};

/// The last parameter of the route's path, parsed: `{endpoint}` of `…/endpoints/{endpoint}/test`.
///
/// Parameters before it belong to authentication: the tenant (and, for publishing, the application) comes from the
/// credential. What cannot be an id or a name names nothing: `404`.
#[derive(Debug, Clone, Copy)]
pub struct InPath<T>(pub T);

impl<S: Send + Sync, T: FromStr> FromRequestParts<S> for InPath<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let params = path_params(parts, state).await?;
        let (_, text) = params.iter().last().ok_or_else(Problem::not_found)?;
        text.parse().map(Self).map_err(|_| Problem::not_found())
    }
}

pub(crate) async fn path_params<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
) -> Result<RawPathParams, Problem> {
    // Refused when a part is not UTF-8 once decoded: then it names nothing.
    RawPathParams::from_request_parts(parts, state).await.map_err(|_| Problem::not_found())
}

/// The query string, taken as `T`. An unknown or misspelt parameter is refused (`400`) rather than ignored, because
/// a filter that does not filter misleads; so `T` denies unknown fields.
#[derive(Debug, Clone, Copy)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        axum::extract::Query::try_from_uri(&parts.uri).map(|axum::extract::Query(query)| Self(query)).map_err(
            |rejection| {
                let reason =
                    std::error::Error::source(&rejection).map(ToString::to_string).unwrap_or_default();
                // The parameter's name comes first, where the refusal is about one.
                let about = match reason.split_once(": ") {
                    Some((name, text)) => format!("`{}`: {}", quoted(name), misfit::of_text(text).detail),
                    None => misfit::of_text(&reason).detail,
                };
                Problem::new(
                    Code::BadRequest,
                    format!("The query is not what this operation takes: {about}."),
                )
            },
        )
    }
}

/// Reads an optional query parameter through `FromStr`, whose error says what would be accepted:
/// `#[serde(default, deserialize_with = "parsed")]`.
pub(crate) fn parsed<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    let text = Option::<Cow<'de, str>>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}
