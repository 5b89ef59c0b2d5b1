//! The HTTP request of one attempt: the raw body and Standard Webhooks headers, so that existing verification libraries
//! work unchanged.
//!
//! | header | value |
//! |---|---|
//! | `webhook-id` | the delivery's id: the same on every retry and replay, and signed |
//! | `webhook-timestamp`, `webhook-signature` | of this attempt |
//! | `postrider-…` | event, delivery, type, signing key and attempt |
//! | `traceparent` | the caller's trace, or the event's own; a new span per attempt |
//! | the endpoint's own | its custom headers, and the one that its credential sets |

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE};
use postrider_core::{
    id::{DeliveryId, SigningKeyId, TenantId},
    signature::{self, SigningSecret},
    trace::TraceId,
};
use time::OffsetDateTime;

use crate::{credentials::Presented, directory::Target, transport::Outgoing};

static EVENT_ID: HeaderName = HeaderName::from_static("postrider-event-id");
static DELIVERY_ID: HeaderName = HeaderName::from_static("postrider-delivery-id");
static EVENT_TYPE: HeaderName = HeaderName::from_static("postrider-event-type");
static KEY_ID: HeaderName = HeaderName::from_static("postrider-key-id");
static ATTEMPT: HeaderName = HeaderName::from_static("postrider-attempt");
static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static WEBHOOK_ID: HeaderName = HeaderName::from_static(signature::ID_HEADER);
static WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static(signature::TIMESTAMP_HEADER);
static WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static(signature::SIGNATURE_HEADER);

/// All that goes into a request.
#[derive(Debug)]
pub struct Parts<'a> {
    pub tenant_id: TenantId,
    pub delivery_id: DeliveryId,
    pub attempt_number: u32,
    pub event_type: &'a str,
    pub content_type: &'a str,
    pub trace_id: [u8; 16],
    /// Names this request within its trace.
    pub span_id: [u8; 8],
    pub body: Bytes,
    /// The key the delivery was accepted under.
    pub key_id: SigningKeyId,
    /// That key first, then those whose signatures go along during an overlap.
    pub secrets: &'a [Arc<SigningSecret>],
    /// What the endpoint's credential puts into this request. No other header has its name: see
    /// [`Target::carried`].
    pub presented: Option<&'a Presented>,
    /// The attempt's own time: it renews with every retry.
    pub now: OffsetDateTime,
}

/// A value that cannot stand in a header; nothing stored should be one.
#[derive(Debug, thiserror::Error)]
#[error("a stored value cannot be sent as a header")]
pub struct Error(#[from] http::header::InvalidHeaderValue);

/// Builds and signs a request.
pub fn build(target: &Target, parts: Parts<'_>) -> Result<Outgoing, Error> {
    let id = parts.delivery_id.to_string();
    let timestamp_s = parts.now.unix_timestamp();
    let secrets: Vec<&SigningSecret> = parts.secrets.iter().map(AsRef::as_ref).collect();
    let signature = signature::signature_header(&secrets, &id, timestamp_s, &parts.body);
    let id = HeaderValue::try_from(id)?;

    let mut headers = HeaderMap::with_capacity(16);
    headers.insert(CONTENT_TYPE, HeaderValue::try_from(parts.content_type)?);
    headers.insert(WEBHOOK_ID.clone(), id.clone());
    headers.insert(WEBHOOK_TIMESTAMP.clone(), HeaderValue::from(timestamp_s));
    headers.insert(WEBHOOK_SIGNATURE.clone(), HeaderValue::try_from(signature)?);
    headers.insert(DELIVERY_ID.clone(), id);
    headers.insert(EVENT_ID.clone(), HeaderValue::try_from(parts.delivery_id.event().to_string())?);
    headers.insert(EVENT_TYPE.clone(), HeaderValue::try_from(parts.event_type)?);
    headers.insert(KEY_ID.clone(), HeaderValue::try_from(parts.key_id.to_string())?);
    headers.insert(ATTEMPT.clone(), HeaderValue::from(parts.attempt_number));
    if let Some(trace_id) = TraceId::from_bytes(parts.trace_id) {
        headers.insert(TRACEPARENT.clone(), HeaderValue::try_from(trace_id.traceparent(parts.span_id))?);
    }
    target.headers.append_to(&mut headers);
    if let Some(Presented { name, value, .. }) = parts.presented {
        headers.insert(name.clone(), value.clone());
    }
    Ok(Outgoing {
        tenant_id: parts.tenant_id,
        method: target.endpoint.method,
        destination: Arc::clone(&target.destination),
        headers,
        body: parts.body,
        timeout: target.endpoint.timeout,
    })
}
