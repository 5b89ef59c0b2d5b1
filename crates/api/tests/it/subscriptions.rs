//! Managing subscriptions, and what it does to the fan-out.

use http::StatusCode;
use postrider_core::problem::Code;
use serde_json::json;

use crate::surface::{Surface, Tenant};

const PATH: &str = "/api/tenants/acme/subscriptions";
const PAYMENTS: &str = "/api/tenants/acme/subscriptions/payments";

/// How many deliveries an event of this type makes.
async fn deliveries(surface: &Surface, acme: &Tenant, event_type: &str) -> i64 {
    let path = format!("/api/tenants/acme/applications/orders/events/{event_type}");
    let accepted = surface.post_json(&path, &acme.publish, "{}").await.expect(202);
    accepted["deliveries"].as_i64().expect("a number")
}

#[tokio::test]
async fn a_subscription_decides_which_events_are_delivered() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    assert_eq!(deliveries(&surface, &acme, "payment.made").await, 0);

    let body = r#"{"id":"payments","applicationId":"orders","endpointId":"warehouse","eventTypes":["payment.*","payment.*"]}"#;
    let created = surface.post_json(PATH, &acme.developer, body).await.expect(201);
    assert_eq!(created["eventTypes"], json!(["payment.*"]), "once each");
    assert_eq!(surface.get(PAYMENTS, &acme.viewer).await.expect(200), created);
    assert_eq!(deliveries(&surface, &acme, "payment.made").await, 1);

    surface.patch(PAYMENTS, &acme.developer, r#"{"enabled":false}"#).await.expect(200);
    assert_eq!(deliveries(&surface, &acme, "payment.made").await, 0);

    let changed =
        surface.patch(PAYMENTS, &acme.developer, r#"{"enabled":true,"eventTypes":["refund.made"]}"#).await;
    assert_eq!(changed.expect(200)["eventTypes"], json!(["refund.made"]));
    assert_eq!(deliveries(&surface, &acme, "payment.made").await, 0);
    assert_eq!(deliveries(&surface, &acme, "refund.made").await, 1);

    let deleted = surface.delete(PAYMENTS, &acme.developer).await;
    assert_eq!((deleted.status, deleted.body.as_slice()), (StatusCode::NO_CONTENT, b"".as_slice()));
    assert_eq!(deliveries(&surface, &acme, "refund.made").await, 0);
    surface.delete(PAYMENTS, &acme.developer).await.expect_problem(Code::NotFound);
}

#[tokio::test]
async fn two_subscriptions_to_one_endpoint_make_one_delivery() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let body = r#"{"id":"all","applicationId":"orders","endpointId":"warehouse","eventTypes":["*"]}"#;
    surface.post_json(PATH, &acme.developer, body).await.expect(201);
    assert_eq!(deliveries(&surface, &acme, "order.created").await, 1);
    let listed = surface.get(PATH, &acme.viewer).await.expect(200);
    let ids: Vec<_> = listed["data"].as_array().expect("data").iter().map(|found| &found["id"]).collect();
    assert_eq!(ids, ["all", "orders-to-warehouse"]);
}

#[tokio::test]
async fn what_is_refused_stores_nothing_and_says_why() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let check = async |change: serde_json::Value, code: Code, field: &str| {
        let mut body =
            json!({"id": "new", "applicationId": "orders", "endpointId": "warehouse", "eventTypes": ["*"]});
        for (name, value) in change.as_object().expect("members") {
            body[name] = value.clone();
        }
        let problem = surface.post_json(PATH, &acme.developer, body.to_string()).await.expect_problem(code);
        assert_eq!(problem["errors"][0]["field"], field, "{body}: {problem}");
    };
    let many: Vec<String> = (0..51).map(|number| format!("type{number}")).collect();
    check(json!({"id": "New"}), Code::InvalidField, "id").await;
    check(json!({"id": "orders-to-warehouse"}), Code::NameTaken, "id").await;
    check(json!({"eventTypes": []}), Code::InvalidField, "eventTypes").await;
    check(json!({"eventTypes": many}), Code::InvalidField, "eventTypes").await;
    check(json!({"eventTypes": "order.*"}), Code::InvalidField, "eventTypes").await;
    check(json!({"eventTypes": ["order.*", "order*"]}), Code::InvalidField, "eventTypes[1]").await;
    check(json!({"applicationId": "unknown"}), Code::NotFound, "applicationId").await;
    check(json!({"applicationId": "postrider-system"}), Code::NotFound, "applicationId").await;
    check(json!({"endpointId": "unknown"}), Code::NotFound, "endpointId").await;
    check(json!({"endpointId": 7}), Code::InvalidField, "endpointId").await;
    check(json!({"filter": "x"}), Code::InvalidField, "filter").await;
    assert_eq!(surface.count("subscriptions").await, 1);

    let existing = format!("{PATH}/orders-to-warehouse");
    for (body, field) in [
        (r#"{"eventTypes":[]}"#, "eventTypes"),
        (r#"{"eventTypes":null}"#, "eventTypes"),
        (r#"{"enabled":null}"#, "enabled"),
        (r#"{"endpointId":"archive"}"#, "endpointId"),
    ] {
        let problem =
            surface.patch(&existing, &acme.developer, body).await.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"], field, "{body}: {problem}");
    }
    assert_eq!(deliveries(&surface, &acme, "order.created").await, 1, "it is as it was");
}
