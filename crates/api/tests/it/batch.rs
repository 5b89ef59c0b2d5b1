//! Publishing many events at once.

use futures::{future::join_all, poll};
use postrider_core::problem::Code;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use crate::surface::Surface;

const BATCH: &str = "/api/tenants/acme/applications/orders/events";

#[tokio::test]
async fn one_bad_event_does_not_sink_the_rest() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let batch = r#"{"events":[
        {"type":"order.created","idempotencyKey":"k1","data":{"n": 1.0}},
        {"type":"order..created","data":1},
        {"type":"order.created","idempotencyKey":"k1","data":{"n": 1.0}},
        {"type":"order.created","idempotencyKey":"k1","data":{"n": 2.0}},
        {"type":"invoice.paid","data":"x"},
        42,
        {"type":"order.created"},
        {"type":7,"data":1},
        {"type":"order.created","data":1,"extra":1}
    ]}"#;
    let answer = surface.post_json(BATCH, &acme.publish, batch).await.expect(200);
    let results = answer["results"].as_array().expect("results");
    let statuses: Vec<u64> =
        results.iter().map(|result| result["status"].as_u64().expect("status")).collect();
    assert_eq!(statuses, [202, 422, 200, 409, 202, 422, 422, 422, 422]);
    assert_eq!(results[0]["deliveries"], 1);
    assert_eq!(results[0]["duplicate"], false);
    assert_eq!(results[2]["id"], results[0]["id"]);
    assert_eq!(results[2]["duplicate"], true);
    assert_eq!(results[3]["problem"]["code"], Code::IdempotencyConflict.as_str());
    assert_eq!(results[4]["deliveries"], 0);
    for result in [&results[1], &results[5]] {
        assert_eq!(result["problem"]["code"], Code::InvalidField.as_str());
        assert_eq!(result["problem"]["status"], 422);
    }
    for (index, field, detail) in [
        (6, "data", "it is missing"),
        (7, "type", "expected a string"),
        (8, "extra", "unknown, expected one of `type`, `idempotencyKey`, `data`"),
    ] {
        let problem = &results[index]["problem"];
        assert_eq!(problem["detail"], format!("`{field}`: {detail}."));
        assert_eq!(problem["errors"], json!([{ "field": field, "detail": detail }]));
    }
    assert_eq!(results[5]["problem"].get("errors"), None, "it is about no field");
    let id = results[0]["id"].as_str().expect("id");
    assert_eq!(surface.stored_body(id).await, br#"{"n": 1.0}"#);
    assert_eq!(surface.stored_events().await, 2);
}

/// More than the queue holds: the batch waits for room instead of failing.
#[tokio::test]
async fn a_batch_may_be_larger_than_the_queue() {
    // The engine's own queue holds more than a batch may have.
    let surface = Surface::with(|settings| {
        let (narrow, mut submissions) = mpsc::channel(512);
        let engine = std::mem::replace(&mut settings.ingest, narrow.into());
        #[expect(clippy::disallowed_methods, reason = "ends with the surface, whose sender it waits for")]
        tokio::spawn(async move {
            while let Some(submission) = submissions.recv().await {
                engine.send(submission).await.expect("the engine runs");
            }
        });
    })
    .await;
    let acme = surface.tenant("acme").await;
    let events: Vec<_> = (0..1000).map(|n| json!({"type": "order.created", "data": n})).collect();
    let answer =
        surface.post_json(BATCH, &acme.publish, json!({ "events": events }).to_string()).await.expect(200);
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results.len(), 1000);
    assert!(results.iter().all(|result| result["status"] == 202));
    assert_eq!(surface.stored_events().await, 1000);
    let last = results[999]["id"].as_str().expect("id");
    assert_eq!(surface.stored_body(last).await, b"999");
}

/// One application sends more than it may have waiting while nothing is stored. It takes half of the queue and waits for
/// the rest; what comes of others meanwhile finds room, and is answered once events are stored again.
#[tokio::test]
async fn batches_of_one_application_leave_room_for_others() {
    const PLACES: usize = 64;
    let (open, opened) = oneshot::channel();
    let (narrow, mut submissions) = mpsc::channel(PLACES);
    let queue = narrow.clone();
    let surface = Surface::with(|settings| {
        let engine = std::mem::replace(&mut settings.ingest, narrow.into());
        #[expect(clippy::disallowed_methods, reason = "ends with the test, whose senders it waits for")]
        tokio::spawn(async move {
            opened.await.expect("the test opens it");
            while let Some(submission) = submissions.recv().await {
                engine.send(submission).await.expect("the engine runs");
            }
        });
    })
    .await;
    let (acme, rival) = (surface.tenant("acme").await, surface.tenant("rival").await);
    let events = json!({ "events": vec![json!({"type": "order.created", "data": 1}); 150] }).to_string();
    let mut flood =
        Box::pin(join_all((0..4).map(|_| surface.post_json(BATCH, &acme.publish, events.clone()))));
    while queue.capacity() > PLACES / 2 {
        assert!(poll!(&mut flood).is_pending());
        tokio::task::yield_now().await;
    }
    assert_eq!(queue.capacity(), PLACES / 2);

    let single = format!("{BATCH}/order.created");
    surface.post_json(&single, &acme.publish, "1").await.expect_problem(Code::Overloaded);
    let single = single.replace("acme", "rival");
    let mut others = Box::pin(join_all((0..10).map(|_| surface.post_json(&single, &rival.publish, "1"))));
    while queue.capacity() > PLACES / 2 - 10 {
        assert!(poll!(&mut others).is_pending());
        tokio::task::yield_now().await;
    }
    open.send(()).expect("it waits");
    let (flood, ()) = tokio::join!(flood, async {
        for other in others.await {
            other.expect(202);
        }
        for _ in 0..10 {
            surface.post_json(&single, &rival.publish, "1").await.expect(202);
        }
    });
    for batch in flood {
        let answer = batch.expect(200);
        let results = answer["results"].as_array().expect("results");
        assert!(results.iter().all(|result| result["status"] == 202), "{answer}");
    }
    assert_eq!(surface.stored_events().await, 4 * 150 + 20);
}

#[tokio::test]
async fn what_is_not_a_batch_is_refused_whole() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let too_many = json!({"events": vec![json!({"type": "a", "data": 1}); 1001]}).to_string();
    let too_large = "x".repeat(8 * 1024 * 1024 + 1);
    for (body, expected) in [
        ("", Code::InvalidJson),
        ("[]", Code::InvalidField),
        (too_many.as_str(), Code::InvalidField),
        (too_large.as_str(), Code::BodyTooLarge),
    ] {
        surface.post_json(BATCH, &acme.publish, body.to_owned()).await.expect_problem(expected);
    }
    for body in ["{}", r#"{"events":7}"#] {
        let problem = surface.post_json(BATCH, &acme.publish, body).await.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"], "events", "{problem}");
    }
    assert_eq!(
        surface.post_json(BATCH, &acme.publish, r#"{"events":[]}"#).await.expect(200),
        json!({"results": []})
    );
    assert_eq!(surface.stored_events().await, 0);
}
