//! Publishing: what an application sends is checked here and handed to the batcher, which answers once the event is
//! durable. The body is passed on as it came; nothing here rebuilds it.

mod batch;
mod budget;
mod event;
mod notification;
mod overload;
mod places;

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use postrider_core::{
    event::{Fingerprint, KeySpace},
    id::EventId,
    name::{EventType, IdempotencyKey},
    problem::Code,
    trace,
};
use postrider_store::{
    ingest::{Accepted, NewEvent, NoEntry, Refusal, Submission, Target},
    routing::Routing,
};
use serde::Serialize;
use tokio::{
    sync::oneshot,
    time::{Sleep, sleep},
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{authenticate, limits, problem::Problem, random, state::State};

pub(crate) use budget::Budget;
pub use budget::MAX_HELD_BYTES;
pub(crate) use overload::require_room;
pub(crate) use places::Places;

/// The media type that every event has so far.
const CONTENT_TYPE: &str = "application/json";

/// Longest wait for the batcher. Its own statements are bounded in time; this bounds what a hung network hides.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(event::publish_event))
        .routes(routes!(batch::publish_batch))
        .routes(routes!(notification::notify_endpoint))
}

/// An accepted event.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct Published {
    #[schema(value_type = String, example = "evt_0192f3a0000070008000000000010000")]
    id: EventId,
    /// The idempotency key was used before for the same event; nothing new was stored.
    duplicate: bool,
    /// How many endpoints get the event.
    deliveries: u32,
}

impl From<Accepted> for Published {
    fn from(accepted: Accepted) -> Self {
        Self { id: accepted.event_id, duplicate: accepted.duplicate, deliveries: accepted.deliveries }
    }
}

/// An event that passed every check at the edge.
pub(crate) struct Checked {
    pub(crate) event_type: EventType,
    pub(crate) key: Option<IdempotencyKey>,
    pub(crate) body: Bytes,
    pub(crate) trace_id: trace::TraceId,
    pub(crate) target: Target,
}

impl Checked {
    /// Gives the event its id and wraps it for the batcher, with the receiving end of its answer.
    pub(crate) fn submission(self, routing: Arc<Routing>, state: &State) -> (Submission, Answer) {
        let (reply, answer) = oneshot::channel();
        let event = NewEvent {
            event_id: EventId::from_fresh(state.fresh_uuid()),
            key: self.key.map(|key| (KeySpace::Events, key)),
            fingerprint: Fingerprint::of(&self.event_type, CONTENT_TYPE, &self.body),
            event_type: self.event_type,
            content_type: CONTENT_TYPE.to_owned(),
            body: self.body,
            trace_id: *self.trace_id.as_bytes(),
            target: self.target,
        };
        (Submission { routing, event, reply }, Answer(answer))
    }
}

/// Where the batcher's answer arrives.
pub(crate) struct Answer(oneshot::Receiver<Result<Accepted, Refusal>>);

impl Answer {
    pub(crate) async fn wait(self, patience: &mut Patience) -> Result<Accepted, Problem> {
        match patience.wait_for(self.0).await {
            Some(Ok(Ok(accepted))) => Ok(accepted),
            Some(Ok(Err(refusal))) => Err(refused(refusal)),
            // The batcher is gone, because the process is ending, or the database hangs.
            Some(Err(_)) | None => Err(refused(Refusal::Unknown)),
        }
    }
}

/// How long a request waits, for however many things: the time is counted once.
pub(crate) struct Patience(Pin<Box<Sleep>>);

impl Patience {
    pub(crate) fn new(time: Duration) -> Self {
        Self(Box::pin(sleep(time)))
    }

    /// What comes of a future, or nothing once the time is over. What is ready by then still counts.
    pub(crate) async fn wait_for<F: Future>(&mut self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = &mut self.0 => None,
        }
    }
}

/// Hands one event over and waits until it is durable. Where its application has its share of the queue, that is answered
/// at once rather than waited for.
pub(crate) async fn submit(
    submission: Submission,
    answer: Answer,
    state: &State,
) -> Result<Accepted, Problem> {
    // Held until the answer is there.
    let Some(_place) = state.places().try_take(submission.routing.application_id) else {
        return Err(refused(Refusal::Overloaded));
    };
    match state.ingest.try_send(submission) {
        Ok(()) => answer.wait(&mut Patience::new(ANSWER_TIMEOUT)).await,
        // Places are as many as the queue has, but those who hung up leave events in it for a moment.
        Err(NoEntry::Full) => Err(refused(Refusal::Overloaded)),
        Err(NoEntry::Closed) => Err(refused(Refusal::Unavailable)),
    }
}

/// What a caller is told whose event was not stored, or perhaps not.
pub(crate) fn refused(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::Conflict { event_id } => Problem::new(
            Code::IdempotencyConflict,
            format!(
                "The idempotency key belongs to event {event_id}, which has another type or body. Use a fresh key \
                 for a new event."
            ),
        ),
        Refusal::Unauthorized => authenticate::unknown(),
        Refusal::ApplicationDisabled => authenticate::application_disabled(),
        Refusal::EndpointUnavailable => {
            Problem::new(Code::EndpointDisabled, "The endpoint is disabled. Enable it, then try again.")
        }
        Refusal::Unstorable => {
            tracing::error!("the database refuses an event that passed every check");
            Problem::new(Code::Internal, "The event could not be stored; it has been logged.")
        }
        Refusal::OverQuota(excess) => limits::over_quota(excess),
        Refusal::Overloaded => Problem::new(
            Code::Overloaded,
            "Too many events are waiting to be stored. Nothing was stored; send it again shortly.",
        ),
        Refusal::Uncounted => Problem::new(
            Code::Overloaded,
            "What the tenant has open is being counted, since this process does not know yet whether its quota is used \
             up. Nothing was stored; send it again shortly.",
        ),
        Refusal::Contended => Problem::new(
            Code::Overloaded,
            "What the event needs in the database (its application, its key or a table) is locked or being changed, so \
             that it could not be stored in time. Nothing was stored; send it again shortly.",
        ),
        Refusal::Unavailable => Problem::new(
            Code::Unavailable,
            "The database cannot be reached, or this process is ending. Nothing was stored; send it again shortly.",
        ),
        Refusal::Unknown => Problem::new(
            Code::Unavailable,
            "The database did not confirm the event, so whether it was stored is unknown. Send it again shortly; under \
             the same Idempotency-Key that is safe.",
        ),
    }
}

/// The trace the caller is in, or a new one.
fn trace_id(headers: &HeaderMap) -> Result<trace::TraceId, Problem> {
    let mut values = headers.get_all(trace::HEADER).iter();
    let parent = match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok().and_then(|text| text.parse::<trace::Traceparent>().ok()),
        _ => None,
    };
    match parent {
        Some(parent) => Ok(parent.trace_id),
        None => fresh_trace_id(),
    }
}

/// A new trace.
pub(crate) fn fresh_trace_id() -> Result<trace::TraceId, Problem> {
    loop {
        // Random bytes are all zero, which the standard forbids, once in 2^128.
        if let Some(id) = trace::TraceId::from_bytes(random::bytes()?) {
            return Ok(id);
        }
    }
}
