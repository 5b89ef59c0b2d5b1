//! Replays of dead letters: previewed, executed once, cancelled, and recorded. Nothing delivers here, so a replay that runs
//! goes on running.

use postrider_core::problem::Code;
use serde_json::{Value, json};

use crate::surface::{Surface, Tenant};

const PATH: &str = "/api/tenants/acme/replays";

async fn dead_letters(surface: &Surface, tenant: &Tenant, count: usize) {
    let path = "/api/tenants/acme/applications/orders/events/order.created";
    for _ in 0..count {
        surface.post_json(path, &tenant.publish, "1").await.expect(202);
    }
    sqlx::query(
        "WITH ended AS (DELETE FROM postrider.delivery_queue RETURNING *)
         INSERT INTO postrider.deliveries SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
                signing_key_id, accepted_at, now(), 'dead_lettered', 'rejected', 1 FROM ended",
    )
    .execute(surface.database.pool())
    .await
    .expect("they die");
}

async fn preview(surface: &Surface, tenant: &Tenant, filter: Value) -> Value {
    let body = json!({ "filter": filter }).to_string();
    surface.post_json(PATH, &tenant.developer, body).await.expect(201)
}

fn path_of(replay: &Value, rest: &str) -> String {
    format!("{PATH}/{}{rest}", replay["id"].as_str().expect("an id"))
}

#[tokio::test]
async fn a_replay_is_previewed_executed_once_and_recorded() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    dead_letters(&surface, &acme, 12).await;
    let filter = json!({ "endpointId": "warehouse", "type": "order.*", "deadReason": "rejected" });
    let previewed = preview(&surface, &acme, filter.clone()).await;
    assert_eq!((&previewed["matches"], &previewed["more"]), (&json!(12), &json!(false)));
    assert_eq!((&previewed["state"], &previewed["filter"]), (&json!("previewed"), &filter));
    let sample = previewed["sample"].as_array().expect("a sample");
    assert_eq!(sample.len(), 10);
    assert!(sample.iter().all(|letter| letter["state"] == "dead_lettered"));
    assert!(previewed["expiresAt"].as_str() > previewed["createdAt"].as_str());

    let executed = surface.post(&path_of(&previewed, "/execute"), &acme.developer).await.expect(202);
    assert_eq!(executed, json!({ "id": previewed["id"], "state": "running" }));
    let again = surface.post(&path_of(&previewed, "/execute"), &acme.developer).await;
    again.expect_problem(Code::ReplayExecuted);

    let shown = surface.get(&path_of(&previewed, ""), &acme.viewer).await.expect(200);
    assert_eq!((&shown["state"], &shown["replayed"]), (&json!("running"), &json!(0)));
    assert!(shown["startedAt"].is_string() && shown["finishedAt"].is_null());
    let cancelled = surface.post(&path_of(&previewed, "/cancel"), &acme.developer).await.expect(200);
    assert_eq!(cancelled["state"], "cancelled");
    for rest in ["/cancel", "/execute"] {
        let refused = surface.post(&path_of(&previewed, rest), &acme.developer).await;
        refused.expect_problem(Code::ReplayOver);
    }

    let audit = surface.get("/api/tenants/acme/audit", &acme.viewer).await.expect(200);
    let entries = audit["data"].as_array().expect("entries");
    let recorded: Vec<&Value> = entries.iter().filter(|entry| entry["target"]["kind"] == "replay").collect();
    let actions: Vec<&str> = recorded.iter().filter_map(|entry| entry["action"].as_str()).collect();
    assert_eq!(actions, ["replay.cancelled", "replay.started", "replay.previewed"]);
    assert!(recorded.iter().all(|entry| entry["target"]["id"] == previewed["id"]));
    assert_eq!(recorded[2]["fields"], json!(["endpointId", "type", "deadReason"]));
}

#[tokio::test]
async fn replays_are_listed_newest_first() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    dead_letters(&surface, &acme, 1).await;
    let first = preview(&surface, &acme, json!({})).await;
    let second = preview(&surface, &acme, json!({ "state": "dead_lettered" })).await;
    let page = surface.get(&format!("{PATH}?limit=1"), &acme.viewer).await.expect(200);
    assert_eq!(page["data"][0]["id"], second["id"]);
    let next = format!("{PATH}?limit=1&cursor={}", page["nextCursor"].as_str().expect("another page"));
    let page = surface.get(&next, &acme.viewer).await.expect(200);
    assert_eq!((&page["data"][0]["id"], &page["nextCursor"]), (&first["id"], &Value::Null));
}

#[tokio::test]
async fn a_filter_that_no_replay_can_have_is_refused_by_its_field() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let id = "dlv_0192f3a0000070008000000000010001";
    for (body, field) in [
        (json!({}), "filter"),
        (json!({ "filter": [] }), "filter"),
        (json!({ "filter": null }), "filter"),
        (json!({ "filter": {}, "more": 1 }), "more"),
        (json!({ "filter": { "state": "pending" } }), "filter.state"),
        (json!({ "filter": { "state": "delivered" } }), "filter.state"),
        (json!({ "filter": { "deadReason": "body_gone" } }), "filter.deadReason"),
        (json!({ "filter": { "deadReason": "boredom" } }), "filter.deadReason"),
        (json!({ "filter": { "ids": [] } }), "filter.ids"),
        (json!({ "filter": { "ids": vec![id; 1_001] } }), "filter.ids"),
        (json!({ "filter": { "ids": ["evt_1"] } }), "filter.ids[0]"),
        (json!({ "filter": { "type": "order*" } }), "filter.type"),
        (json!({ "filter": { "endpointId": "No name" } }), "filter.endpointId"),
        (json!({ "filter": { "since": "yesterday" } }), "filter.since"),
        (json!({ "filter": { "endpoint": "warehouse" } }), "filter.endpoint"),
        (json!({ "filter": { "endpointId": null } }), "filter.endpointId"),
        (json!({ "filter": { "since": null } }), "filter.since"),
        (json!({ "filter": { "ids": null } }), "filter.ids"),
    ] {
        let refused = surface.post_json(PATH, &acme.developer, body.to_string()).await;
        let problem = refused.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"], field, "{body}: {problem}");
    }
    assert_eq!(surface.count("replays").await, 0);
}

#[tokio::test]
async fn no_more_than_ten_are_open_and_one_that_is_late_is_not_executed() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let first = preview(&surface, &acme, json!({})).await;
    for _ in 1..10 {
        preview(&surface, &acme, json!({})).await;
    }
    let refused = surface.post_json(PATH, &acme.developer, r#"{"filter":{}}"#).await;
    refused.expect_problem(Code::LimitReached);
    sqlx::query("UPDATE postrider.replays SET expires_at = now()")
        .execute(surface.database.pool())
        .await
        .expect("an hour passes");
    let late = surface.post(&path_of(&first, "/execute"), &acme.developer).await;
    late.expect_problem(Code::ReplayExpired);
    assert_eq!(surface.get(&path_of(&first, ""), &acme.viewer).await.expect(200)["state"], "expired");
    preview(&surface, &acme, json!({})).await;
}

#[tokio::test]
async fn another_tenants_replay_is_unknown() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let rival = surface.tenant("rival").await;
    dead_letters(&surface, &acme, 1).await;
    let replay = preview(&surface, &acme, json!({})).await;
    let foreign = path_of(&replay, "").replace("/acme/", "/rival/");
    surface.get(&foreign, &rival.viewer).await.expect_problem(Code::NotFound);
    for rest in ["/execute", "/cancel"] {
        surface.post(&format!("{foreign}{rest}"), &rival.owner).await.expect_problem(Code::NotFound);
    }
    let own = surface.post_json("/api/tenants/rival/replays", &rival.developer, r#"{"filter":{}}"#).await;
    assert_eq!(own.expect(201)["matches"], 0, "nor are its letters seen");
    assert_eq!(surface.get(&path_of(&replay, ""), &acme.viewer).await.expect(200)["state"], "previewed");
}
