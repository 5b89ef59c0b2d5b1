//! Reading what happened: events, deliveries, attempts, timelines; sending again, and test events.

use std::collections::HashSet;

use postrider_core::{id::DeliveryId, problem::Code};
use serde_json::Value;

use crate::surface::{Surface, Tenant};

const ORDERS: &str = "/api/tenants/acme/applications/orders/events/order.created";

pub(crate) async fn publish(surface: &Surface, tenant: &Tenant, event_type: &str) -> String {
    let path = ORDERS.replace("order.created", event_type);
    let accepted = surface.post_json(&path, &tenant.publish, r#"{"secret":"body"}"#).await.expect(202);
    accepted["id"].as_str().expect("id").to_owned()
}

fn ids(list: &Value) -> Vec<String> {
    let data = list["data"].as_array().expect("data").iter();
    data.map(|entry| entry["id"].as_str().expect("id").to_owned()).collect()
}

/// Ends a delivery the way a worker would have, with one failed attempt.
pub(crate) async fn end_as_dead_letter(surface: &Surface, delivery: &str) {
    let id: DeliveryId = delivery.parse().expect("delivery id");
    for statement in [
        "INSERT INTO postrider.attempts (tenant_id, delivery_id, attempt_number, outcome, started_at, ended_at,
                                         latency_ms, status_code)
         SELECT tenant_id, delivery_id, 1, 'dead_lettered', now(), now(), 12, 400
           FROM postrider.delivery_queue WHERE delivery_id = $1",
        "WITH ended AS (DELETE FROM postrider.delivery_queue WHERE delivery_id = $1 RETURNING *)
         INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id,
                                           signing_key_id, accepted_at, ended_at, outcome, dead_reason, attempt_number)
         SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, now(),
                'dead_lettered', 'rejected', 1
           FROM ended",
    ] {
        let done = sqlx::query(statement).bind(id.as_uuid()).execute(surface.database.pool()).await.expect("statement");
        assert_eq!(done.rows_affected(), 1);
    }
}

#[tokio::test]
async fn events_are_listed_newest_first_and_without_bodies() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let mut published = Vec::new();
    for event_type in ["order.created", "invoice.paid", "order.created", "order.paid", "order.created"] {
        published.push(publish(&surface, &acme, event_type).await);
    }
    let by_id: HashSet<String> = published.iter().cloned().collect();

    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/api/tenants/acme/events?limit=2{cursor}");
        let page = surface.get(&path, &acme.viewer).await.expect(200);
        seen.extend(ids(&page));
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert!(seen.is_sorted_by(|newer, older| newer > older));
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), by_id);

    for (query, expected) in [
        ("type=order.created", 3),
        ("type=order.created&applicationId=orders", 3),
        ("applicationId=billing", 0),
        ("since=2020-01-01T00:00:00Z", 5),
        ("until=2020-01-01T00:00:00Z", 0),
    ] {
        let list = surface.get(&format!("/api/tenants/acme/events?{query}"), &acme.viewer).await.expect(200);
        assert_eq!(ids(&list).len(), expected, "{query}");
    }

    let event = surface.get(&format!("/api/tenants/acme/events/{}", published[0]), &acme.viewer).await;
    assert!(!String::from_utf8_lossy(&event.body).contains("secret"));
    let event = event.expect(200);
    assert_eq!(event["type"], "order.created");
    assert_eq!(event["applicationId"], "orders");
    assert_eq!(event["contentType"], "application/json");
    assert_eq!(event["bodyBytes"], 17);
    assert_eq!(event["deliveries"], 1);
    assert!(event["acceptedAt"].as_str().is_some_and(|time| time.ends_with('Z')));
}

#[tokio::test]
async fn a_dead_letter_is_shown_sent_again_once_and_numbered_on() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let event = publish(&surface, &acme, "order.created").await;
    publish(&surface, &acme, "order.created").await;
    let timeline_path = format!("/api/tenants/acme/events/{event}/timeline");
    let timeline = surface.get(&timeline_path, &acme.viewer).await.expect(200);
    let delivery = timeline["deliveries"][0]["id"].as_str().expect("id").to_owned();
    let path = format!("/api/tenants/acme/deliveries/{delivery}");
    let open = surface.get(&path, &acme.viewer).await.expect(200);
    assert_eq!(
        (&open["state"], &open["attempts"], &open["endedAt"]),
        (&"pending".into(), &0.into(), &Value::Null)
    );
    assert_eq!((&open["endpointId"], &open["eventId"]), (&"warehouse".into(), &event.as_str().into()));
    assert_eq!((&open["lastStatus"], &open["lastFailure"]), (&Value::Null, &Value::Null));
    assert!(open["deadlineAt"].is_string() && open["pendingSince"].is_string());
    surface.post(&format!("{path}/retry"), &acme.developer).await.expect_problem(Code::NotDeadLettered);

    end_as_dead_letter(&surface, &delivery).await;
    let dead = surface.get(&path, &acme.viewer).await.expect(200);
    assert_eq!((&dead["state"], &dead["deadReason"]), (&"dead_lettered".into(), &"rejected".into()));
    let list =
        surface.get("/api/tenants/acme/deliveries?state=dead_lettered", &acme.viewer).await.expect(200);
    assert_eq!(ids(&list), [delivery.as_str()]);
    for shown in [&dead, &list["data"][0]] {
        assert_eq!((&shown["lastStatus"], &shown["lastFailure"]), (&400.into(), &Value::Null));
    }
    let all = surface
        .get("/api/tenants/acme/deliveries?endpointId=warehouse&type=order.created", &acme.viewer)
        .await;
    assert_eq!(ids(&all.expect(200)).len(), 2);
    let attempts = surface.get(&format!("{path}/attempts"), &acme.viewer).await.expect(200);
    assert_eq!(attempts["data"][0]["number"], 1);
    assert_eq!(attempts["data"][0]["outcome"], "dead_lettered");
    assert_eq!(attempts["data"][0]["statusCode"], 400);
    assert_eq!(attempts["nextCursor"], Value::Null);
    let timeline = surface.get(&timeline_path, &acme.viewer).await.expect(200);
    assert_eq!(
        (timeline["attempts"].as_array().map(Vec::len), &timeline["truncated"]),
        (Some(1), &false.into())
    );

    let retry = surface.post(&format!("{path}/retry"), &acme.developer).await.expect(202);
    assert_eq!((&retry["id"], &retry["state"]), (&delivery.as_str().into(), &"pending".into()));
    surface.post(&format!("{path}/retry"), &acme.developer).await.expect_problem(Code::NotDeadLettered);
    let again = surface.get(&path, &acme.viewer).await.expect(200);
    assert_eq!((&again["state"], &again["attempts"]), (&"pending".into(), &1.into()));
}

#[tokio::test]
async fn a_test_event_takes_the_ordinary_path_to_one_endpoint() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let sent = surface.post("/api/tenants/acme/endpoints/warehouse/test", &acme.developer).await.expect(202);
    let path = format!("/api/tenants/acme/deliveries/{}", sent["deliveryId"].as_str().expect("id"));
    let delivery = surface.get(&path, &acme.viewer).await.expect(200);
    assert_eq!(delivery["eventId"], sent["id"]);
    assert_eq!(delivery["eventType"], "postrider.test");
    assert_eq!(delivery["endpointId"], "warehouse");
    assert_eq!(delivery["state"], "pending");
    let body = surface.stored_body(sent["id"].as_str().expect("id")).await;
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(body, serde_json::json!({"type": "postrider.test", "endpointId": "warehouse"}));
    surface
        .post("/api/tenants/acme/endpoints/nothing/test", &acme.developer)
        .await
        .expect_problem(Code::NotFound);
}
