//! A delivery as callers see it: flat, with null for what its state does not have.

use postrider_core::id::{DeliveryId, EventId, SigningKeyId};
use postrider_store::deliveries::{self, State, Status};
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::{
    ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

/// One event on its way to one endpoint.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Delivery {
    #[schema(value_type = String, example = "dlv_0192f3a0000070008000000000010001")]
    id: DeliveryId,
    #[schema(value_type = String, example = "evt_0192f3a0000070008000000000010000")]
    event_id: EventId,
    /// The name of the application that published the event.
    application_id: String,
    /// The name of the endpoint.
    endpoint_id: String,
    /// Null once the event has been erased.
    #[schema(required)]
    event_type: Option<String>,
    #[schema(schema_with = states)]
    state: &'static str,
    /// The key that requests are signed under, as receivers see it in `Postrider-Key-Id`.
    #[schema(value_type = String, example = "sig_0192f3a0000070008000000000020000")]
    key_id: SigningKeyId,
    /// Number of the newest attempt; 0 before the first.
    attempts: u32,
    /// The receiver's HTTP status in the newest attempt that ended; null without one, or when no answer came.
    #[schema(required)]
    last_status: Option<u16>,
    /// The kind of failure of the newest attempt that ended, such as `timeout`.
    #[schema(required)]
    last_failure: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    accepted_at: OffsetDateTime,
    /// When an open delivery is given up.
    #[schema(required)]
    #[serde(with = "time::serde::rfc3339::option")]
    deadline_at: Option<OffsetDateTime>,
    /// Since when a pending delivery waits for a worker.
    #[schema(required)]
    #[serde(with = "time::serde::rfc3339::option")]
    pending_since: Option<OffsetDateTime>,
    /// When a scheduled delivery is tried again.
    #[schema(required)]
    #[serde(with = "time::serde::rfc3339::option")]
    due_at: Option<OffsetDateTime>,
    /// When the attempt of a delivery in flight began.
    #[schema(required)]
    #[serde(with = "time::serde::rfc3339::option")]
    in_flight_since: Option<OffsetDateTime>,
    /// When a delivered or dead-lettered delivery ended.
    #[schema(required)]
    #[serde(with = "time::serde::rfc3339::option")]
    ended_at: Option<OffsetDateTime>,
    /// Why a dead letter ended without success: `rejected`, `attempts_exhausted`, `deadline_passed`,
    /// `endpoint_gone`, `endpoint_deleted` or `body_gone`.
    #[schema(required, value_type = Option<String>)]
    dead_reason: Option<&'static str>,
}

/// The words for a delivery's state.
pub(crate) fn states() -> RefOr<Schema> {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(Status::ALL.iter().map(|status| status.as_str())))
        .description(Some("Where the delivery stands; `held` means that its endpoint is disabled."))
        .into()
}

impl From<deliveries::Delivery> for Delivery {
    fn from(delivery: deliveries::Delivery) -> Self {
        let mut view = Self {
            id: delivery.id,
            event_id: delivery.event_id,
            application_id: delivery.application.to_string(),
            endpoint_id: delivery.endpoint.to_string(),
            event_type: delivery.event_type.map(|event_type| event_type.to_string()),
            state: delivery.state.status().as_str(),
            key_id: delivery.signing_key_id,
            attempts: delivery.attempts,
            last_status: delivery.last_status,
            last_failure: delivery.last_failure,
            accepted_at: delivery.accepted_at,
            deadline_at: None,
            pending_since: None,
            due_at: None,
            in_flight_since: None,
            ended_at: None,
            dead_reason: None,
        };
        match delivery.state {
            State::Pending { since, deadline } => {
                (view.pending_since, view.deadline_at) = (Some(since), Some(deadline));
            }
            State::Scheduled { due_at, deadline } => {
                (view.due_at, view.deadline_at) = (Some(due_at), Some(deadline));
            }
            State::InFlight { since, deadline } => {
                (view.in_flight_since, view.deadline_at) = (Some(since), Some(deadline));
            }
            State::Held { deadline } => view.deadline_at = Some(deadline),
            State::Delivered { ended_at } => view.ended_at = Some(ended_at),
            State::DeadLettered { ended_at, reason } => {
                (view.ended_at, view.dead_reason) = (Some(ended_at), Some(reason.as_str()));
            }
        }
        view
    }
}
