use axum::{
    extract::Request,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, StatusCode};
use postrider_core::{
    event,
    name::{self, IdempotencyKey},
    problem::Code,
};
use postrider_store::ingest::Target;

use super::{Checked, Published, require_room, submit, trace_id};
use crate::{authenticate::Publisher, body, limits, problem::Problem, request::InPath, state::State};

/// The header that names the publisher's own key for an event.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Publishes one event.
///
/// The body is any JSON text of at most 1 MiB, nested at most 128 levels deep. It is stored and forwarded byte for
/// byte: key order, spelling of numbers and duplicate keys survive. The answer comes once the event and all its
/// deliveries are durable. An event that no subscription wants is accepted with zero deliveries.
///
/// With an `Idempotency-Key`, sending the same event again stores nothing new and answers `200`; the same key with
/// another type or body is refused. Without one, every request is a new event.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/applications/{application}/events/{type}",
    tag = "Publishing",
    security(("publishToken" = [])),
    params(
        ("Idempotency-Key" = Option<String>, Header,
            description = "The publisher's own key for this event: 1 to 255 visible ASCII characters.",
            example = "order-42-created"),
        ("traceparent" = Option<String>, Header,
            description = "The caller's trace (W3C Trace Context); deliveries continue it. Ignored when malformed."),
    ),
    request_body(content = serde_json::Value, description = "The event, as its receivers get it."),
    responses(
        (status = 202, description = "Accepted: the event is durable.", body = Published),
        (status = 200, description = "The event was accepted before; nothing new was stored.", body = Published),
        (status = 403, description = "`forbidden`: not a publish token. `application_disabled`: the application is disabled."),
        (status = 409, description = "`idempotency_conflict`: the key belongs to an event with another type or body."),
        (status = 429, description = "`rate_limited`: the tenant publishes faster than it may. `quota_exceeded`: it has used up one of its quotas."),
        (status = 503, description = "`overloaded`: too much waits to be stored or sent; `Retry-After` says when to try again."),
    ),
)]
pub(crate) async fn publish_event(
    mut publisher: Publisher,
    state: State,
    InPath(event_type): InPath<String>,
    request: Request,
) -> Result<Response, Problem> {
    require_room(publisher.routing.tenant_id, &state)?;
    let standing = limits::take(&mut publisher, 1, &state).await?;
    let answer = publish(publisher, &state, event_type, request).await;
    Ok(limits::tell(standing, answer.into_response()))
}

async fn publish(
    publisher: Publisher,
    state: &State,
    event_type: String,
    request: Request,
) -> Result<Response, Problem> {
    let event_type =
        event_type.parse().map_err(|error: name::Error| Problem::invalid_field("type", error.to_string()))?;
    body::require_json(request.headers())?;
    let key = idempotency_key(request.headers())?;
    let trace_id = trace_id(request.headers())?;
    let (body, share) =
        state.budget().read(publisher.routing.tenant_id, request, event::MAX_BODY_BYTES).await?;
    event::check_json(&body).map_err(|error| Problem::new(Code::InvalidJson, format!("{error}.")))?;

    let body = share.count(body);
    let checked = Checked { event_type, key, body, trace_id, target: Target::Plan };
    let (submission, answer) = checked.submission(publisher.routing, state);
    let accepted = submit(submission, answer, state).await?;
    share.give_back();
    let status = if accepted.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, body::Json(Published::from(accepted))).into_response())
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Problem> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let refuse = |reason: &str| Problem::new(Code::BadRequest, format!("`Idempotency-Key`: {reason}."));
    if values.next().is_some() {
        return Err(refuse("send it once"));
    }
    let text = value.to_str().map_err(|_| refuse(&name::Error::IdempotencyKey.to_string()))?;
    text.parse().map(Some).map_err(|error: name::Error| refuse(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn an_idempotency_key_comes_once_and_well_formed_or_not_at_all() {
        let check = |values: &[&'static [u8]], expected: Result<Option<&str>, Code>| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).expect("header"));
            }
            let key = idempotency_key(&headers);
            let key = key.as_ref().map(|key| key.as_ref().map(IdempotencyKey::as_str)).map_err(Problem::code);
            assert_eq!(key, expected, "{values:?}");
        };
        check(&[], Ok(None));
        check(&[b"order-42"], Ok(Some("order-42")));
        check(&[b"order-42", b"order-42"], Err(Code::BadRequest));
        check(&[b""], Err(Code::BadRequest));
        check(&[b"order 42"], Err(Code::BadRequest));
        check(&[b"order\xff"], Err(Code::BadRequest));
    }
}
