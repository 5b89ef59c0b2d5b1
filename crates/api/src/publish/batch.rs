use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use axum::{
    extract::Request,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::StatusCode;
use postrider_core::{
    event,
    name::{EventType, IdempotencyKey},
    problem::Code,
    trace::TraceId,
};
use postrider_store::ingest::{Accepted, Refusal, Target};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use super::{
    ANSWER_TIMEOUT, Answer, Checked, Patience, Published, budget::Share, places::Place, refused,
    require_room, trace_id,
};
use crate::{
    authenticate::Publisher,
    body, limits,
    object::Object,
    problem::{Document, Problem},
    state::State,
};

/// Most events in one batch.
const MAX_EVENTS: usize = 1000;

/// Longest body of a batch, in bytes (8 MiB). Each event's own limit holds besides.
const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Longest time a whole batch waits for room among the events that wait for the database.
const ROOM_TIMEOUT: Duration = Duration::from_secs(5);

/// A batch of events.
#[derive(Debug, ToSchema)]
#[schema(as = Batch)]
#[allow(dead_code, reason = "describes the body; the reader below takes it apart without building it")]
pub(crate) struct BatchDocument {
    /// At most 1000.
    #[schema(max_items = 1000)]
    events: Vec<BatchItem>,
}

/// One event of a batch.
#[derive(Debug, ToSchema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "describes the body; the reader below takes it apart without building it")]
pub(crate) struct BatchItem {
    #[schema(example = "order.created")]
    r#type: String,
    /// The publisher's own key for this event: 1 to 255 visible ASCII characters.
    idempotency_key: Option<String>,
    /// The event, as its receivers get it: forwarded byte for byte, at most 1 MiB.
    data: serde_json::Value,
}

/// What became of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchAnswer {
    /// One per event, in the order of the batch.
    #[schema(value_type = Vec<BatchResult>)]
    results: Vec<ItemAnswer>,
}

/// What became of one event: its status is what publishing it alone would have answered.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the answer, whose problems borrow")]
pub(crate) enum BatchResult {
    Published {
        /// `202`, or `200` for an event that was accepted before.
        status: u16,
        #[serde(flatten)]
        published: Published,
    },
    Refused {
        status: u16,
        #[schema(value_type = Document)]
        problem: serde_json::Value,
    },
}

#[derive(Debug)]
struct ItemAnswer(Result<Accepted, Problem>);

impl Serialize for ItemAnswer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Done {
            status: u16,
            #[serde(flatten)]
            published: Published,
        }
        #[derive(Serialize)]
        struct Refused<'a> {
            status: u16,
            problem: Document<'a>,
        }
        match &self.0 {
            Ok(accepted) => {
                let status = if accepted.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
                Done { status: status.as_u16(), published: Published::from(*accepted) }.serialize(serializer)
            }
            Err(problem) => Refused { status: problem.status().as_u16(), problem: problem.document() }
                .serialize(serializer),
        }
    }
}

/// Publishes many events.
///
/// Each event is accepted or refused on its own, with the answer that publishing it alone would have had; one bad
/// event does not sink the rest. The answer comes once every accepted event is durable. When the connection breaks
/// before, events with an `idempotencyKey` can be sent again safely.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/applications/{application}/events",
    tag = "Publishing",
    security(("publishToken" = [])),
    params(
        ("traceparent" = Option<String>, Header,
            description = "The caller's trace (W3C Trace Context); deliveries continue it. Ignored when malformed."),
    ),
    request_body(content = BatchDocument, description = "At most 1000 events and 8 MiB."),
    responses(
        (status = 200, description = "What became of each event.", body = BatchAnswer),
        (status = 403, description = "`forbidden`: not a publish token. `application_disabled`: the application is disabled."),
        (status = 429, description = "`rate_limited`: the tenant publishes faster than it may; a batch counts as many times as it has events."),
        (status = 503, description = "`overloaded`: too much waits to be sent; nothing of the batch was stored."),
    ),
)]
pub(crate) async fn publish_batch(
    mut publisher: Publisher,
    state: State,
    request: Request,
) -> Result<Response, Problem> {
    require_room(publisher.routing.tenant_id, &state)?;
    limits::require_any(&mut publisher, &state).await?;
    body::require_json(request.headers())?;
    let trace_id = trace_id(request.headers())?;
    let (body, share) = state.budget().read(publisher.routing.tenant_id, request, MAX_BATCH_BYTES).await?;
    let items = items(&body)?;
    let standing = limits::take(&mut publisher, items.len(), &state).await?;
    let events: Vec<Result<Checked, Problem>> =
        items.into_iter().map(|item| check(item, trace_id, &share)).collect();
    // Each event has a copy of its own by now, so that a long delivery of a small one does not keep the whole batch.
    drop(body);

    let results = publish_all(events, &publisher, &state).await;
    share.give_back();
    Ok(limits::tell(standing, body::Json(BatchAnswer { results }).into_response()))
}

/// Hands events over as fast as there is room, so that the batcher stores them together. Their answers are taken
/// meanwhile: what is answered makes room for the rest, of this batch and of others of the application.
async fn publish_all(
    events: Vec<Result<Checked, Problem>>,
    publisher: &Publisher,
    state: &State,
) -> Vec<ItemAnswer> {
    let mut results = Vec::with_capacity(events.len());
    let (entered, mut answers) = mpsc::channel(MAX_EVENTS);
    let entering = async move {
        let mut patience = Patience::new(ROOM_TIMEOUT);
        for event in events {
            let answer = match event {
                Ok(checked) => enter(checked, publisher, state, &mut patience).await,
                Err(problem) => Err(problem),
            };
            if entered.send(answer).await.is_err() {
                return;
            }
        }
    };
    let answering = async {
        let mut patience = Patience::new(ANSWER_TIMEOUT);
        while let Some(answer) = answers.recv().await {
            results.push(ItemAnswer(match answer {
                Ok((answer, place)) => {
                    let result = answer.wait(&mut patience).await;
                    drop(place);
                    result
                }
                Err(problem) => Err(problem),
            }));
        }
    };
    tokio::join!(entering, answering);
    results
}

/// An event of a batch waits for a place, for a while: a batch may be larger than its application's share. What finds
/// none is refused.
async fn enter<'a>(
    checked: Checked,
    publisher: &Publisher,
    state: &'a State,
    patience: &mut Patience,
) -> Result<(Answer, Place<'a>), Problem> {
    let room = async {
        let place = state.places().take(publisher.routing.application_id).await;
        (place, state.ingest.reserve(&publisher.routing).await)
    };
    match patience.wait_for(room).await {
        Some((place, Ok(room))) => {
            let (submission, answer) = checked.submission(Arc::clone(&publisher.routing), state);
            room.send(submission);
            Ok((answer, place))
        }
        Some((_, Err(_closed))) => Err(refused(Refusal::Unavailable)),
        None => Err(refused(Refusal::Overloaded)),
    }
}

fn items(body: &Bytes) -> Result<Vec<&RawValue>, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Batch<'a> {
        #[serde(borrow)]
        events: Items<'a>,
    }
    let text = std::str::from_utf8(body).map_err(|error| {
        Problem::new(
            Code::InvalidJson,
            format!("The body is not UTF-8 from byte {} on.", error.valid_up_to()),
        )
    })?;
    // A batch that is refused is read once more to name the field: keeping track of it would cost every batch.
    serde_json::from_str::<Object<Batch<'_>>>(text)
        .or_else(|error| {
            if error.is_data() {
                body::take(body, "The batch")
            } else {
                Err(Problem::new(Code::InvalidJson, format!("The batch cannot be read: {error}.")))
            }
        })
        .map(|Object(batch)| batch.events.0)
}

fn check(item: &RawValue, trace_id: TraceId, share: &Arc<Share>) -> Result<Checked, Problem> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Item<'a> {
        #[serde(borrow)]
        r#type: Cow<'a, str>,
        #[serde(borrow)]
        idempotency_key: Option<Cow<'a, str>>,
        #[serde(borrow)]
        data: &'a RawValue,
    }
    // As with the batch: only what is refused is read once more.
    let Object(item): Object<Item<'_>> =
        serde_json::from_str(item.get()).or_else(|_| body::take(item.get().as_bytes(), "The event"))?;
    let event_type: EventType =
        item.r#type.parse().map_err(|error| Problem::invalid_field("type", format!("{error}")))?;
    let key: Option<IdempotencyKey> = item
        .idempotency_key
        .map(|key| key.parse())
        .transpose()
        .map_err(|error| Problem::invalid_field("idempotencyKey", format!("{error}")))?;
    let data = item.data.get().as_bytes();
    if data.len() > event::MAX_BODY_BYTES {
        return Err(body::too_large(event::MAX_BODY_BYTES));
    }
    event::check_json(data).map_err(|error| Problem::new(Code::InvalidJson, format!("{error}.")))?;
    let body = share.count(Bytes::copy_from_slice(data));
    Ok(Checked { event_type, key, body, trace_id, target: Target::Plan })
}

/// The events of a batch, each as it was written. Reading stops at the first one too many, so that a body full of
/// tiny events costs no memory.
struct Items<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Events;
        impl<'de> Visitor<'de> for Events {
            type Value = Items<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "a list of at most {MAX_EVENTS} events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Items<'de>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = sequence.next_element()? {
                    if items.len() == MAX_EVENTS {
                        return Err(serde::de::Error::invalid_length(MAX_EVENTS + 1, &self));
                    }
                    items.push(item);
                }
                Ok(Items(items))
            }
        }
        deserializer.deserialize_seq(Events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(batch: &str) -> Result<Vec<Result<Bytes, Code>>, Code> {
        let body = Bytes::copy_from_slice(batch.as_bytes());
        let trace_id = TraceId::from_bytes([1; 16]).expect("trace id");
        let share = Share::none();
        let items = items(&body).map_err(|problem| problem.code())?;
        Ok(items
            .into_iter()
            .map(|item| check(item, trace_id, &share).map(|item| item.body).map_err(|problem| problem.code()))
            .collect())
    }

    #[test]
    fn each_event_is_read_on_its_own_and_its_data_kept_as_written() {
        let results = read(
            r#" {"events": [
                {"type": "a.b", "data": {"b": 1.10, "a":-0,  "a":"\ud800"} },
                {"data": 1, "type": "a.b", "idempotencyKey": "k\u002d1"},
                {"type": "a.b"}, 17, {"type": "../x", "data": 1}, {"type": "a", "data": 1, "extra": 1},
                {"type": "a", "data": 1, "idempotencyKey": "two words"}, ["a", "k", 1]
            ]} "#,
        );
        let kept = |text: &'static str| Ok(Bytes::from_static(text.as_bytes()));
        assert_eq!(
            results,
            Ok(vec![
                kept(r#"{"b": 1.10, "a":-0,  "a":"\ud800"}"#),
                kept("1"),
                Err(Code::InvalidField),
                Err(Code::InvalidField),
                Err(Code::InvalidField),
                Err(Code::InvalidField),
                Err(Code::InvalidField),
                Err(Code::InvalidField),
            ])
        );
    }

    #[test]
    fn limits_hold_for_the_batch_and_for_each_event() {
        let deep = format!(r#"{{"events":[{{"type":"a","data":{}{}}}]}}"#, "[".repeat(129), "]".repeat(129));
        assert_eq!(read(&deep), Ok(vec![Err(Code::InvalidJson)]));
        let large =
            format!(r#"{{"events":[{{"type":"a","data":"{}"}}]}}"#, "x".repeat(event::MAX_BODY_BYTES));
        assert_eq!(read(&large), Ok(vec![Err(Code::BodyTooLarge)]));
        let many = |count: usize| format!(r#"{{"events":[{}]}}"#, vec!["1"; count].join(","));
        assert_eq!(read(&many(MAX_EVENTS)).map(|results| results.len()), Ok(MAX_EVENTS));
        assert_eq!(read(&many(MAX_EVENTS + 1)), Err(Code::InvalidField));
        for (batch, expected) in [
            ("", Code::InvalidJson),
            ("{", Code::InvalidJson),
            ("{}", Code::InvalidField),
            ("[]", Code::InvalidField),
            (r#" [[{"type":"a","data":1}]]"#, Code::InvalidField),
            (r#"{"events":{}}"#, Code::InvalidField),
            (r#"{"events":[],"more":1}"#, Code::InvalidField),
        ] {
            assert_eq!(read(batch), Err(expected), "{batch}");
        }
    }
}
