//! What is answered where no operation answers.

use std::sync::Arc;

use axum::body::Body;
use http::{Method, Request, header};
use postrider_core::problem::Code;
use tokio::sync::mpsc;
use tower::ServiceExt as _;

use crate::{
    reply::Reply,
    surface::{METRICS_TOKEN, Surface, request, settings},
};

#[tokio::test]
async fn unknown_paths_and_methods_are_problems_too() {
    let surface = Surface::new().await;
    for path in
        ["/nothing", "/api", "/api/tenants/acme/nothing", "/health/", "//", "/api/tenants/a%FFb/events"]
    {
        let reply = surface.call(Request::get(path).body(Body::empty()).expect("request")).await;
        assert!(matches!(reply.status.as_u16(), 404 | 401), "{path}: {reply:?}");
    }
    for path in ["/", "/nothing"] {
        let problem = surface.get(path, "").await.expect_problem(Code::NotFound);
        assert!(problem["detail"].as_str().expect("text").contains("/openapi.json"), "{problem}");
    }
    for method in [Method::DELETE, Method::PUT, Method::from_bytes(b"BREW").expect("a method")] {
        let named = format!("`{method}`");
        let reply = surface.call(request(method, "/health", "").body(Body::empty()).expect("request")).await;
        let problem = reply.expect_problem(Code::MethodNotAllowed);
        assert!(problem["detail"].as_str().expect("text").starts_with(&named), "{problem}");
        assert_eq!(reply.header(&header::ALLOW), "GET,HEAD");
    }
}

#[tokio::test]
async fn a_path_that_is_not_text_names_nothing() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    for path in
        ["/api/tenants/a%FFb/events", "/api/tenants/acme/events/%FF", "/api/tenants/acme/events/evt_1"]
    {
        surface.get(path, &acme.owner).await.expect_problem(Code::NotFound);
    }
}

#[tokio::test]
async fn queries_that_would_not_filter_are_refused() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    for query in [
        "limit=0",
        "limit=251",
        "limit=x",
        "limit=-1",
        "cursor=x",
        "cursor=",
        "state=lost",
        "stat=pending",
        "since=yesterday",
        "type=order.*",
        "endpointId=a%20b",
        "limit=1&limit=2",
    ] {
        let reply = surface.get(&format!("/api/tenants/acme/deliveries?{query}"), &acme.viewer).await;
        assert_eq!(reply.status.as_u16(), 400, "{query}");
        reply.expect_problem(Code::BadRequest);
    }
}

#[tokio::test]
async fn a_refused_query_is_told_what_would_be_accepted() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let check = async |query: &str, expected: &str| {
        let reply = surface.get(&format!("/api/tenants/acme/events?{query}"), &acme.viewer).await;
        let problem = reply.expect_problem(Code::BadRequest);
        assert_eq!(
            problem["detail"],
            format!("The query is not what this operation takes: {expected}."),
            "{query}"
        );
    };
    let moment = "a time is written as in RFC 3339, such as 2026-11-29T20:15:00Z; write `+` as %2B";
    for time in ["yesterday", "2026-11-29", "2026-11-29T20:15:00+02:00", ""] {
        check(&format!("since={time}"), &format!("`since`: {moment}")).await;
        check(&format!("until={time}"), &format!("`until`: {moment}")).await;
    }
    check("limit=x", "`limit`: expected a whole number").await;
    let known = "expected one of `applicationId`, `type`, `since`, `until`, `limit`, `cursor`";
    check("stat=1", &format!("`stat`: unknown, {known}")).await;
    let accepted = "/api/tenants/acme/events?since=2026-11-29T20:15:00%2B02:00";
    surface.get(accepted, &acme.viewer).await.expect(200);
}

#[tokio::test]
async fn a_panic_is_a_problem_and_the_next_request_is_served() {
    let surface = Surface::new().await;
    let (sender, _receiver) = mpsc::channel(1);
    let mut settings = settings(surface.database.serving_pool().clone(), sender);
    settings.render_metrics = Arc::new(|| panic!("a defect"));
    let router = postrider_api::router(settings.into());
    for _ in 0..2 {
        let request = request(Method::GET, "/metrics", METRICS_TOKEN).body(Body::empty()).expect("request");
        let reply = Reply::read(router.clone().oneshot(request).await.expect("infallible")).await;
        let problem = reply.expect_problem(Code::Internal);
        assert!(!problem.to_string().contains("defect"));
    }
}

#[tokio::test]
async fn answers_are_not_kept_by_caches() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let reply = surface.get("/api/tenants/acme/events", &acme.viewer).await;
    reply.expect(200);
    assert_eq!(reply.header(&header::CACHE_CONTROL), "no-store");
    assert_eq!(reply.header(&header::X_CONTENT_TYPE_OPTIONS), "nosniff");
}

/// Members are told by name: a list of values in the right order is no object.
#[tokio::test]
async fn a_list_is_not_taken_for_an_object() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let body = "The body is not what this operation takes: expected a JSON object.";
    let field = |name: &str| format!("`{name}`: expected a JSON object.");
    let check = async |method: Method, path: &str, sent: &str, expected: &str| {
        let path = format!("/api/tenants/acme/{path}");
        let reply = match method {
            Method::PATCH => surface.patch(&path, &acme.owner, sent.to_owned()).await,
            _ => surface.post_json(&path, &acme.owner, sent.to_owned()).await,
        };
        assert_eq!(reply.expect_problem(Code::InvalidField)["detail"], expected, "{path} {sent}");
    };
    check(Method::POST, "applications", r#"["by-position"]"#, body).await;
    check(Method::POST, "applications", "7", body).await;
    check(Method::PATCH, "applications/orders", "[true]", body).await;
    check(Method::POST, "endpoints/warehouse/rotate-secret", "[]", body).await;
    check(Method::PATCH, "endpoints/warehouse", r#"{"retry":[1]}"#, &field("retry")).await;
    check(Method::PATCH, "endpoints/warehouse", r#"{"rateLimit":[1]}"#, &field("rateLimit")).await;
    let created = r#"{"id":"a","url":"https://a.example/","retry":[1]}"#;
    check(Method::POST, "endpoints", created, &field("retry")).await;
}
