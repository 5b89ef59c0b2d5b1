//! Accepted events, without their bodies: those are for receivers only.

mod get;
mod list;
mod timeline;
mod wanted;

use postrider_core::id::EventId;
use postrider_store::events;
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::state::State;

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list::list_events))
        .routes(routes!(get::get_event))
        .routes(routes!(timeline::get_event_timeline))
}

/// An accepted event.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    #[schema(value_type = String, example = "evt_0192f3a0000070008000000000010000")]
    id: EventId,
    /// The name of the application that published it.
    application_id: String,
    r#type: String,
    content_type: String,
    /// Length of the body in bytes.
    body_bytes: u32,
    /// The trace it belongs to (W3C Trace Context), 32 hexadecimal digits.
    trace_id: String,
    /// How many endpoints it was meant for when it was accepted.
    deliveries: u32,
    #[serde(with = "time::serde::rfc3339")]
    accepted_at: OffsetDateTime,
}

impl From<events::Event> for Event {
    fn from(event: events::Event) -> Self {
        Self {
            id: event.id,
            application_id: event.application.to_string(),
            r#type: event.event_type.to_string(),
            content_type: event.content_type,
            body_bytes: event.body_bytes,
            trace_id: format!("{:032x}", u128::from_be_bytes(event.trace_id)),
            deliveries: event.deliveries,
            accepted_at: event.accepted_at,
        }
    }
}
