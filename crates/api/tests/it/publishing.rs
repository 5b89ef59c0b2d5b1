//! Publishing one event.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::body::Body;
use bytes::Bytes;
use futures::{
    StreamExt as _,
    stream::{self, FuturesUnordered},
};
use http::{Method, header};
use postrider_core::{problem::Code, token::Token};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};
use tower::ServiceExt as _;

use crate::{
    body_cases::Bodies,
    reply::Reply,
    surface::{Surface, request, settings},
};

const ORDERS: &str = "/api/tenants/acme/applications/orders/events/order.created";

fn publish(token: &str, key: Option<&str>, body: impl Into<Body>) -> http::Request<Body> {
    let mut request = request(Method::POST, ORDERS, token).header(header::CONTENT_TYPE, "application/json");
    if let Some(key) = key {
        request = request.header("Idempotency-Key", key);
    }
    request.body(body.into()).expect("request")
}

#[tokio::test]
async fn a_key_makes_one_event_and_no_key_makes_one_each_time() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;

    let first = surface.call(publish(&acme.publish, Some("k1"), r#"{"n":1}"#)).await.expect(202);
    assert_eq!((&first["duplicate"], &first["deliveries"]), (&false.into(), &1.into()));

    let repeat = surface.call(publish(&acme.publish, Some("k1"), r#"{"n":1}"#)).await.expect(200);
    assert_eq!((&repeat["id"], &repeat["duplicate"]), (&first["id"], &true.into()));
    assert_eq!(repeat["deliveries"], 1);

    let clash = surface.call(publish(&acme.publish, Some("k1"), r#"{"n":2}"#)).await;
    let problem = clash.expect_problem(Code::IdempotencyConflict);
    assert!(
        problem["detail"].as_str().is_some_and(|detail| detail.contains(first["id"].as_str().expect("id")))
    );

    surface.call(publish(&acme.publish, None, r#"{"n":1}"#)).await.expect(202);
    surface.call(publish(&acme.publish, None, r#"{"n":1}"#)).await.expect(202);
    assert_eq!(surface.stored_events().await, 3);
}

#[tokio::test]
async fn an_event_that_nobody_wants_is_accepted() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let path = ORDERS.replace("order.created", "invoice.paid");
    let accepted = surface.post_json(&path, &acme.publish, "null").await.expect(202);
    assert_eq!(accepted["deliveries"], 0);
}

#[tokio::test]
async fn a_trace_goes_on_or_begins() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    for (traceparent, expected) in [
        (Some(format!("00-{trace}-00f067aa0ba902b7-01")), Some(trace)),
        (Some("nonsense".to_owned()), None),
        (None, None),
    ] {
        let mut request = publish(&acme.publish, None, "1");
        if let Some(value) = &traceparent {
            request.headers_mut().insert("traceparent", value.parse().expect("header"));
        }
        let id = surface.call(request).await.expect(202)["id"].as_str().expect("id").to_owned();
        let event = surface.get(&format!("/api/tenants/acme/events/{id}"), &acme.viewer).await.expect(200);
        let trace_id = event["traceId"].as_str().expect("trace id");
        assert_eq!(trace_id.len(), 32);
        assert!(expected.is_none_or(|expected| trace_id == expected), "{traceparent:?} → {trace_id}");
        assert!(expected.is_some() || trace_id != trace);
    }
}

/// What was sent is what is stored, or it is refused and nothing is stored; in a batch likewise.
#[tokio::test]
async fn bodies_are_kept_byte_for_byte_or_refused() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let cases: Bodies =
        serde_json::from_str(include_str!("../../../../cases/json-edge-bodies.json")).expect("cases");
    assert!(cases.bodies.len() >= 30);
    for case in cases.bodies {
        let body = case.body();
        let before = surface.stored_events().await;
        let reply = surface.call(publish(&acme.publish, None, body.clone())).await;
        let accepted = reply.status.as_u16() == 202;
        match case.expect.as_str() {
            "accept_exact" => assert!(accepted, "{}: {reply:?}", case.id),
            "reject_400" => assert!(!accepted, "{}", case.id),
            "reject_413" => drop(reply.expect_problem(Code::BodyTooLarge)),
            "accept_exact_or_4xx" | "either" => {}
            other => panic!("unknown expectation {other:?}"),
        }
        if accepted {
            let id = reply.json()["id"].as_str().expect("id").to_owned();
            assert_eq!(surface.stored_body(&id).await, body, "{}", case.id);
        } else {
            assert!(reply.status.is_client_error(), "{}: {reply:?}", case.id);
            assert_eq!(surface.stored_events().await, before, "{}", case.id);
        }

        let batch = [br#"{"events":[{"type":"order.created","data":"#.as_slice(), &body, b"}]}"].concat();
        let reply =
            surface.post_json("/api/tenants/acme/applications/orders/events", &acme.publish, batch).await;
        if accepted {
            let results = reply.expect(200);
            let id = results["results"][0]["id"].as_str().unwrap_or_else(|| panic!("{}: {results}", case.id));
            assert_eq!(surface.stored_body(id).await, body.trim_ascii(), "{}", case.id);
        } else {
            let is_refused =
                reply.status.is_client_error() || reply.json()["results"][0]["status"].as_u64() >= Some(400);
            assert!(is_refused, "{}: {reply:?}", case.id);
            assert_eq!(surface.stored_events().await, before, "{}", case.id);
        }
    }
}

#[derive(Deserialize)]
struct Names {
    event_types: Vec<EventTypeCase>,
}

#[derive(Deserialize)]
struct EventTypeCase {
    expect: String,
    event_type: String,
}

#[tokio::test]
async fn event_types_that_could_inject_something_are_refused() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let cases: Names = serde_json::from_str(include_str!("../../../../cases/header-and-name-injection.json"))
        .expect("cases");
    assert!(cases.event_types.len() >= 8);
    for case in cases.event_types {
        let expected_in_path = case.expect == "accept";
        let encoded: Vec<String> = case.event_type.bytes().map(|byte| format!("%{byte:02X}")).collect();
        for path_type in [encoded.concat(), case.event_type.clone()] {
            let path = format!("/api/tenants/acme/applications/orders/events/{path_type}");
            // What is not a URI never reaches a server that parses requests.
            if path.parse::<http::Uri>().is_err() {
                continue;
            }
            let reply = surface.post_json(&path, &acme.publish, "1").await;
            assert_eq!(reply.status.as_u16() == 202, expected_in_path, "{path_type}: {reply:?}");
            assert!(expected_in_path || reply.status.is_client_error(), "{path_type}: {reply:?}");
        }
        let batch = serde_json::json!({"events": [{"type": case.event_type, "data": 1}]}).to_string();
        let reply =
            surface.post_json("/api/tenants/acme/applications/orders/events", &acme.publish, batch).await;
        let status = reply.expect(200)["results"][0]["status"].clone();
        assert_eq!(status, if expected_in_path { 202 } else { 422 }, "{}", case.event_type);
    }
}

#[tokio::test]
async fn what_is_not_an_event_is_refused_and_not_stored() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let too_large = format!("\"{}\"", "x".repeat(1024 * 1024 - 1));
    for (content_type, key, body, expected) in [
        (Some("application/json"), None, "{", Code::InvalidJson),
        (Some("application/json"), None, "", Code::InvalidJson),
        (Some("application/json"), Some("two words"), "1", Code::BadRequest),
        (Some("application/json"), None, too_large.as_str(), Code::BodyTooLarge),
        (Some("text/plain"), None, "1", Code::UnsupportedMediaType),
        (Some("application/cloudevents+json"), None, "1", Code::UnsupportedMediaType),
        (None, None, "1", Code::UnsupportedMediaType),
    ] {
        let mut request = publish(&acme.publish, key, body.to_owned());
        request.headers_mut().remove(header::CONTENT_TYPE);
        if let Some(content_type) = content_type {
            request.headers_mut().insert(header::CONTENT_TYPE, content_type.parse().expect("header"));
        }
        surface.call(request).await.expect_problem(expected);
    }
    let longest = format!("\"{}\"", "x".repeat(1024 * 1024 - 2));
    surface.call(publish(&acme.publish, None, longest)).await.expect(202);
    assert_eq!(surface.stored_events().await, 1);
}

/// An endless body, and how many times 64 KiB of it were read.
fn endless() -> (Body, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&read);
    let part = Bytes::from(vec![b' '; 64 * 1024]);
    let parts = stream::repeat_with(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(part.clone())
    });
    (Body::from_stream(parts), read)
}

/// How many times 64 KiB may be read of a refused body, to find its end: those, and what is too much.
const READ_ON: usize = 2;

#[tokio::test]
async fn an_endless_body_is_cut_off_and_a_strangers_almost_at_once() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let (body, read) = endless();
    surface.call(publish(&acme.publish, None, body)).await.expect_problem(Code::BodyTooLarge);
    assert_eq!(read.load(Ordering::Relaxed), 1024 / 64 + 1 + READ_ON);

    for (token, expected) in [("stranger", Code::Unauthorized), (acme.owner.as_str(), Code::Forbidden)] {
        let (body, read) = endless();
        surface.call(publish(token, None, body)).await.expect_problem(expected);
        assert_eq!(read.load(Ordering::Relaxed), READ_ON);
    }
}

/// The batcher takes what it is given and never answers, as when the database hangs. Nobody waits for ever, and the
/// events of a batch wait together, not one after the other.
#[tokio::test]
async fn waiting_for_the_database_has_an_end() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let (sender, _receiver) = mpsc::channel(2);
    let settings = settings(surface.database.serving_pool().clone(), sender);
    // Known before the time stands still: nothing below needs the database.
    let token = Token::parse(&acme.publish).expect("token");
    settings
        .routing
        .by_token(&settings.peppers.hash(&token), || None)
        .await
        .expect("query")
        .expect("application");
    let router = postrider_api::router(settings.into());
    tokio::time::pause();

    #[expect(clippy::disallowed_methods, reason = "the paused time is what is measured")]
    let began = tokio::time::Instant::now();
    let reply = router.clone().oneshot(publish(&acme.publish, Some("k"), "1")).await.expect("infallible");
    Reply::read(reply).await.expect_problem(Code::Unavailable);

    let events = vec![json!({"type": "order.created", "data": 1}); 10];
    let mut batch = publish(&acme.publish, None, json!({ "events": events }).to_string());
    *batch.uri_mut() = ORDERS.trim_end_matches("/order.created").parse().expect("URI");
    let reply = Reply::read(router.oneshot(batch).await.expect("infallible")).await.expect(200);
    let codes = reply["results"].as_array().expect("results").iter().map(|result| &result["problem"]["code"]);
    // One place was left in the queue.
    assert!(codes.eq(["unavailable"].into_iter().chain(["overloaded"; 9])), "{reply}");
    assert_eq!(began.elapsed().as_secs(), 30 + 30);
}

#[tokio::test]
async fn a_disabled_application_may_not_publish() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    // Cached before it is disabled: ingest finds the copy stale.
    surface.call(publish(&acme.publish, None, "1")).await.expect(202);
    let pool = surface.database.pool();
    let name = "orders".parse().expect("name");
    let mut transaction = postrider_store::edit::begin(pool).await.expect("transaction");
    let application = postrider_store::applications::get_by_name(&mut *transaction, acme.id, &name).await;
    let application = application.expect("query").expect("application");
    postrider_store::applications::set_enabled(&mut transaction, acme.id, application.id, false)
        .await
        .expect("edit");
    transaction.commit().await.expect("commit");
    for _ in 0..2 {
        surface.call(publish(&acme.publish, None, "1")).await.expect_problem(Code::ApplicationDisabled);
    }
    assert_eq!(surface.stored_events().await, 1);
}

#[tokio::test]
async fn a_full_queue_and_a_stopped_batcher_are_told_apart_from_success() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let (sender, receiver) = mpsc::channel(1);
    let router =
        postrider_api::router(settings(surface.database.serving_pool().clone(), sender.clone()).into());

    // The only place is taken.
    let _permit = sender.reserve().await.expect("room");
    let reply =
        Reply::read(router.clone().oneshot(publish(&acme.publish, None, "1")).await.expect("infallible"))
            .await;
    reply.expect_problem(Code::Overloaded);
    assert_eq!(reply.header(&header::RETRY_AFTER), "1");

    drop(receiver);
    let reply =
        Reply::read(router.oneshot(publish(&acme.publish, None, "1")).await.expect("infallible")).await;
    reply.expect_problem(Code::Unavailable);
}

/// What has arrived is counted, so a few long bodies that never end take all the room that a tenant gets.
#[tokio::test]
async fn bodies_take_a_bounded_number_of_bytes_all_together() {
    const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let reading = Arc::new(Semaphore::new(0));
    let most = Bytes::from(vec![b' '; MAX_BATCH_BYTES]);
    let never_ending = || {
        let (reading, most) = (Arc::clone(&reading), most.clone());
        let begun = stream::once(async move {
            reading.add_permits(1);
            Ok::<_, Infallible>(most)
        });
        let mut batch = publish(&acme.publish, None, Body::from_stream(begun.chain(stream::pending())));
        *batch.uri_mut() = ORDERS.trim_end_matches("/order.created").parse().expect("URI");
        surface.call(batch)
    };
    // Half of all, since the tenant is alone.
    let count = postrider_api::MAX_HELD_BYTES / 2 / MAX_BATCH_BYTES;
    let mut hanging: FuturesUnordered<_> = (0..count).map(|_| never_ending()).collect();
    let all = u32::try_from(count).expect("few");
    tokio::select! {
        ended = hanging.next() => panic!("one ended: {ended:?}"),
        all = reading.acquire_many(all) => drop(all.expect("open")),
    }
    let refused = surface.call(publish(&acme.publish, None, "1")).await;
    refused.expect_problem(Code::Overloaded);
    let batch = ORDERS.trim_end_matches("/order.created");
    let refused = surface.post_json(batch, &acme.publish, r#"{"events":[]}"#).await;
    refused.expect_problem(Code::Overloaded);
    assert_eq!(surface.stored_events().await, 0);
    let globex = surface.tenant("globex").await;
    surface.post_json(&ORDERS.replace("acme", "globex"), &globex.publish, "1").await.expect(202);

    drop(hanging);
    for _ in 0..3 {
        surface.call(publish(&acme.publish, None, "1")).await.expect(202);
    }
}

#[tokio::test]
async fn racing_publishes_of_one_key_make_one_event() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let racing = (0..50).map(|_| surface.call(publish(&acme.publish, Some("race"), r#"{"n":1}"#)));
    let replies = futures::future::join_all(racing).await;
    let ids: std::collections::HashSet<String> =
        replies.iter().map(|reply| reply.json()["id"].to_string()).collect();
    let fresh = replies.iter().filter(|reply| reply.status.as_u16() == 202).count();
    let repeated = replies.iter().filter(|reply| reply.status.as_u16() == 200).count();
    assert_eq!((ids.len(), fresh, repeated), (1, 1, 49));
    assert_eq!(surface.stored_events().await, 1);
}
