//! Managing applications, and what it does to publishing.

use axum::body::Body;
use http::{Method, header};
use postrider_core::problem::Code;

use crate::{
    reply::Reply,
    surface::{Surface, Tenant, request},
};

const PATH: &str = "/api/tenants/acme/applications";
const BILLING: &str = "/api/tenants/acme/applications/billing";

async fn publish(surface: &Surface, token: &str) -> Reply {
    surface.post_json("/api/tenants/acme/applications/billing/events/invoice.sent", token, "{}").await
}

/// Creates the application `billing`; gives its publish token.
async fn create(surface: &Surface, acme: &Tenant) -> String {
    let created = surface.post_json(PATH, &acme.developer, r#"{"id":"billing"}"#).await.expect(201);
    assert_eq!((&created["id"], &created["enabled"]), (&"billing".into(), &true.into()));
    created["publishToken"].as_str().expect("a token").to_owned()
}

#[tokio::test]
async fn an_application_publishes_while_it_is_enabled() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let token = create(&surface, &acme).await;
    assert!(token.starts_with("prp_"), "its prefix says what it opens");
    publish(&surface, &token).await.expect(202);

    let disabled = surface.patch(BILLING, &acme.developer, r#"{"enabled":false}"#).await.expect(200);
    assert_eq!(disabled["enabled"], false);
    publish(&surface, &token).await.expect_problem(Code::ApplicationDisabled);

    surface.patch(BILLING, &acme.developer, r#"{"enabled":true}"#).await.expect(200);
    publish(&surface, &token).await.expect(202);
    assert_eq!(surface.stored_events().await, 2);
}

#[tokio::test]
async fn a_rotated_token_is_refused_from_the_answer_on() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let old = create(&surface, &acme).await;
    publish(&surface, &old).await.expect(202);
    let rotated = surface.post(&format!("{BILLING}/rotate-token"), &acme.developer).await.expect(200);
    let new = rotated["publishToken"].as_str().expect("a token");
    assert_ne!(new, old);
    publish(&surface, &old).await.expect_problem(Code::Unauthorized);
    publish(&surface, new).await.expect(202);
    assert_eq!(surface.stored_events().await, 2);
}

#[tokio::test]
async fn a_token_is_shown_once() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let token = create(&surface, &acme).await;
    for path in [PATH, BILLING] {
        let reply = surface.get(path, &acme.owner).await;
        let shown = reply.expect(200).to_string();
        assert!(shown.contains("billing") && !shown.contains(&token) && !shown.contains("oken"), "{shown}");
    }
}

#[tokio::test]
async fn lists_are_paged_newest_first() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    for number in 0..4 {
        surface.post_json(PATH, &acme.developer, format!(r#"{{"id":"a{number}"}}"#)).await.expect(201);
    }
    let mut seen = Vec::new();
    let mut path = format!("{PATH}?limit=2");
    loop {
        let page = surface.get(&path, &acme.viewer).await.expect(200);
        let data = page["data"].as_array().expect("data");
        seen.extend(data.iter().map(|application| application["id"].as_str().expect("id").to_owned()));
        let Some(cursor) = page["nextCursor"].as_str() else { break };
        path = format!("{PATH}?limit=2&cursor={cursor}");
    }
    assert_eq!(seen, ["a3", "a2", "a1", "a0", "orders"]);
    for query in ["limit=0", "limit=251", "limit=x", "cursor=x", "page=2"] {
        surface.get(&format!("{PATH}?{query}"), &acme.viewer).await.expect_problem(Code::BadRequest);
    }
}

#[tokio::test]
async fn a_tenants_own_sender_of_test_events_is_hidden() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let own = format!("{PATH}/postrider-system");
    surface.get(&own, &acme.owner).await.expect_problem(Code::NotFound);
    surface.patch(&own, &acme.owner, r#"{"enabled":false}"#).await.expect_problem(Code::NotFound);
    surface.post(&format!("{own}/rotate-token"), &acme.owner).await.expect_problem(Code::NotFound);
    surface
        .post_json(PATH, &acme.owner, r#"{"id":"postrider-system"}"#)
        .await
        .expect_problem(Code::NameTaken);
}

#[tokio::test]
async fn what_is_refused_stores_nothing_and_says_why() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let before = surface.count("applications").await;
    for (body, code, field) in [
        ("", Code::InvalidJson, None),
        ("null", Code::InvalidField, None),
        ("{}", Code::InvalidField, Some("id")),
        (r#"{"id":"Billing"}"#, Code::InvalidField, Some("id")),
        (r#"{"id":null}"#, Code::InvalidField, Some("id")),
        (r#"{"id":"billing","publishToken":"mine"}"#, Code::InvalidField, Some("publishToken")),
        (r#"{"id":"orders"}"#, Code::NameTaken, Some("id")),
    ] {
        let problem = surface.post_json(PATH, &acme.developer, body).await.expect_problem(code);
        assert_eq!(problem["errors"][0]["field"].as_str(), field, "{body}: {problem}");
    }
    let plain = request(Method::POST, PATH, &acme.developer).header(header::CONTENT_TYPE, "text/plain");
    let reply = surface.call(plain.body(Body::from(r#"{"id":"billing"}"#)).expect("request")).await;
    let problem = reply.expect_problem(Code::UnsupportedMediaType);
    assert!(!problem.to_string().contains("merge-patch"), "{problem}");
    let plain = request(Method::PATCH, &format!("{PATH}/orders"), &acme.developer);
    let plain = plain.header(header::CONTENT_TYPE, "text/plain").body(Body::from("{}")).expect("request");
    let problem = surface.call(plain).await.expect_problem(Code::UnsupportedMediaType);
    assert!(problem.to_string().contains("application/merge-patch+json"), "{problem}");
    assert_eq!(surface.count("applications").await, before);

    let orders = format!("{PATH}/orders");
    for (body, field) in [
        (r#"{"enabled":null}"#, Some("enabled")),
        (r#"{"enabled":"no"}"#, Some("enabled")),
        (r#"{"id":"renamed"}"#, Some("id")),
        ("false", None),
    ] {
        let problem = surface.patch(&orders, &acme.developer, body).await.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"].as_str(), field, "{body}: {problem}");
    }
    assert_eq!(surface.get(&orders, &acme.viewer).await.expect(200)["enabled"], true);
    surface.patch(BILLING, &acme.developer, "{}").await.expect_problem(Code::NotFound);
}
