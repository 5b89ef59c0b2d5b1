use std::{num::NonZeroU16, sync::Arc};

use axum::{
    extract::Request,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, StatusCode, header};
use postrider_core::{
    event::{self, Fingerprint, KeySpace},
    id::{DeliveryId, EndpointId, EventId},
    name::{EventType, Name},
    problem::Code,
};
use postrider_store::{
    ingest::{Accepted, NewEvent, Refusal, Submission, Target},
    routing::Routing,
};
use serde::Serialize;
use tokio::sync::oneshot;
use utoipa::ToSchema;

use super::{Answer, event::idempotency_key, refused, require_room, submit, trace_id};
use crate::{authenticate::Publisher, body, limits, problem::Problem, request::InPath, state::State};

/// The type of every notification, as receivers and filters see it.
const EVENT_TYPE: &str = "postrider.notification";
/// What a body is that says nothing of itself (RFC 9110, section 8.3).
const DEFAULT_CONTENT_TYPE: &str = "application/octet-stream";
/// Longest content type, in bytes.
const MAX_CONTENT_TYPE_LENGTH: usize = 255;

/// A notification on its way.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Notified {
    #[schema(value_type = String, example = "evt_0192f3a0000070008000000000010000")]
    id: EventId,
    #[schema(value_type = String, example = "dlv_0192f3a0000070008000000000010001")]
    delivery_id: DeliveryId,
    /// The idempotency key was used before for the same notification; nothing new was stored.
    duplicate: bool,
}

/// Sends one body to one approved endpoint.
///
/// The body is anything of at most 1 MiB, already as the vendor wants it. It is stored and sent byte for byte, under the
/// content type it came with (`application/octet-stream` unless given), and has the same guarantees as an event: the
/// answer comes once it is durable. It appears among events under the type `postrider.notification`. No subscription is
/// needed, and none applies.
///
/// The endpoint is one that the operator's registry declares and that lists this application; any other is not found.
/// With an `Idempotency-Key`, sending the same body again to the same endpoint stores nothing new and answers `200`; keys
/// of notifications and of events are kept apart.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/applications/{application}/notifications/{endpoint}",
    tag = "Publishing",
    security(("publishToken" = [])),
    params(
        ("Idempotency-Key" = Option<String>, Header,
            description = "The publisher's own key for this notification: 1 to 255 visible ASCII characters.",
            example = "order-42-sms"),
        ("traceparent" = Option<String>, Header,
            description = "The caller's trace (W3C Trace Context); deliveries continue it. Ignored when malformed."),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "What the vendor gets."),
    responses(
        (status = 202, description = "Accepted: the notification is durable.", body = Notified),
        (status = 200, description = "The notification was accepted before; nothing new was stored.", body = Notified),
        (status = 403, description = "`forbidden`: not a publish token. `application_disabled`: the application is disabled."),
        (status = 404, description = "`not_found`: no approved endpoint of this id lists the application."),
        (status = 409, description = "`idempotency_conflict`: the key belongs to another notification. \
            `endpoint_disabled`: the endpoint is disabled."),
        (status = 429, description = "`rate_limited`: the tenant publishes faster than it may. `quota_exceeded`: it has used up one of its quotas."),
        (status = 503, description = "`overloaded`: too much waits to be stored or sent; `Retry-After` says when to try again."),
    ),
)]
pub(crate) async fn notify_endpoint(
    mut publisher: Publisher,
    state: State,
    InPath(name): InPath<Name>,
    request: Request,
) -> Result<Response, Problem> {
    require_room(publisher.routing.tenant_id, &state)?;
    let standing = limits::take(&mut publisher, 1, &state).await?;
    let answer = notify(publisher, &state, name, request).await;
    Ok(limits::tell(standing, answer.into_response()))
}

async fn notify(
    publisher: Publisher,
    state: &State,
    name: Name,
    request: Request,
) -> Result<Response, Problem> {
    let (routing, endpoint_id) = find(publisher.routing, &name, state).await?;
    let content_type = content_type(request.headers())?;
    let key = idempotency_key(request.headers())?;
    let trace_id = trace_id(request.headers())?;
    let (body, share) = state.budget().read(routing.tenant_id, request, event::MAX_BODY_BYTES).await?;

    let body = share.count(body);
    let event_type: EventType = EVENT_TYPE.parse().map_err(|error| Problem::internal(&error))?;
    let event = NewEvent {
        event_id: EventId::from_fresh(state.fresh_uuid()),
        key: key.map(|key| (KeySpace::Notifications, key)),
        fingerprint: Fingerprint::of_notification(endpoint_id, &content_type, &body),
        event_type,
        content_type,
        body,
        trace_id: *trace_id.as_bytes(),
        target: Target::Endpoint(endpoint_id),
    };
    let (reply, answer) = oneshot::channel();
    let submission = Submission { routing: Arc::clone(&routing), event, reply };
    let accepted = match submit(submission, Answer(answer), state).await {
        // The plan that it was found in was out of date: it may be gone rather than disabled.
        Err(problem) if problem.code() == Code::EndpointDisabled => {
            find_anew(&routing, &name, state).await?;
            return Err(problem);
        }
        answered => answered?,
    };
    share.give_back();
    let status = if accepted.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, body::Json(Notified::from(accepted))).into_response())
}

impl From<Accepted> for Notified {
    fn from(accepted: Accepted) -> Self {
        Self {
            id: accepted.event_id,
            delivery_id: accepted.event_id.delivery(NonZeroU16::MIN),
            duplicate: accepted.duplicate,
        }
    }
}

/// The approved endpoint of this name, and the plan that has it. A copy in memory may be older than the registry, so only
/// the newest one turns anyone away.
async fn find(seen: Arc<Routing>, name: &Name, state: &State) -> Result<(Arc<Routing>, EndpointId), Problem> {
    if let Some(id) = seen.approved.get(name).copied().filter(|id| seen.addressed(*id).is_some()) {
        return Ok((seen, id));
    }
    find_anew(&seen, name, state).await
}

async fn find_anew(
    seen: &Routing,
    name: &Name,
    state: &State,
) -> Result<(Arc<Routing>, EndpointId), Problem> {
    let newest = state.routing.reload(seen.application_id).await?;
    let newest = newest.filter(|newest| newest.has_token_of(seen));
    let newest = newest.ok_or_else(|| refused(Refusal::Unauthorized))?;
    let id = newest.approved.get(name).copied().ok_or_else(Problem::not_found)?;
    if newest.addressed(id).is_none() {
        return Err(refused(Refusal::EndpointUnavailable));
    }
    Ok((newest, id))
}

/// What the body says it is, to be sent on as it stands.
fn content_type(headers: &HeaderMap) -> Result<String, Problem> {
    let refuse = |reason: &str| Problem::new(Code::BadRequest, format!("`Content-Type`: {reason}."));
    if headers.contains_key(header::CONTENT_ENCODING) {
        return Err(Problem::new(
            Code::UnsupportedMediaType,
            "The body is sent on as it stands, without a `Content-Encoding`. Send it uncompressed.",
        ));
    }
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let Some(value) = values.next() else { return Ok(DEFAULT_CONTENT_TYPE.to_owned()) };
    if values.next().is_some() {
        return Err(refuse("send it once"));
    }
    match value.to_str().map(str::trim) {
        Ok("") | Err(_) => Err(refuse("visible ASCII characters")),
        Ok(text) if text.len() > MAX_CONTENT_TYPE_LENGTH => {
            Err(refuse(&format!("at most {MAX_CONTENT_TYPE_LENGTH} characters")))
        }
        Ok(text) => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_content_type_is_kept_as_it_came_or_refused() {
        let check = |values: &[&[u8]], expected: Result<&str, Code>| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_TYPE, HeaderValue::from_bytes(value).expect("header"));
            }
            let seen = content_type(&headers);
            assert_eq!(seen.as_deref().map_err(Problem::code), expected, "{values:?}");
        };
        let long = "x".repeat(MAX_CONTENT_TYPE_LENGTH);
        check(&[], Ok("application/octet-stream"));
        check(&[b"text/xml; charset=\"ISO-8859-1\""], Ok("text/xml; charset=\"ISO-8859-1\""));
        check(&[long.as_bytes()], Ok(&long));
        check(&[format!("{long}x").as_bytes()], Err(Code::BadRequest));
        check(&[b"text/plain", b"text/plain"], Err(Code::BadRequest));
        check(&[b""], Err(Code::BadRequest));
        check(&[b"text/\xff"], Err(Code::BadRequest));
    }

    #[test]
    fn a_compressed_body_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(content_type(&headers).map_err(|problem| problem.code()), Err(Code::UnsupportedMediaType));
    }
}
