//! Health and metrics, with the database there and away.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::body::Body;
use http::{Method, Request, header};
use metrics_exporter_prometheus::PrometheusBuilder;
use postrider_api::OptionalDependency;
use postrider_core::problem::Code;
use postrider_store::migrate;
use serde_json::json;
use sqlx::PgPool;
use tokio::sync::mpsc;
use tower::ServiceExt as _;

use crate::{
    reply::Reply,
    surface::{BOOTSTRAP_TOKEN, METRICS_TOKEN, Surface, request, settings},
};

#[tokio::test]
async fn with_its_database_the_process_is_ready() {
    let surface = Surface::new().await;
    let up = json!({"postgresql": "up"});
    let newest = migrate::embedded().iter().map(|migration| migration.version).max();
    for (path, expected) in [
        ("/health", json!({"status": "up", "dependencies": up})),
        ("/health/live", json!({"status": "live"})),
        ("/health/ready", json!({"status": "ready", "dependencies": up})),
        ("/health/version", json!({"version": "1.2.3", "commit": "0123456", "schema": newest})),
    ] {
        let reply = surface.call(Request::get(path).body(Body::empty()).expect("request")).await;
        assert_eq!(reply.expect(200), expected, "{path}");
    }
}

#[tokio::test]
async fn without_its_database_the_process_lives_but_is_not_ready() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    surface.database.serving_pool().close().await;
    let down = json!({"postgresql": "down"});
    for (path, status, expected) in [
        ("/health", 503, json!({"status": "down", "dependencies": down})),
        ("/health/live", 200, json!({"status": "live"})),
        (
            "/health/ready",
            503,
            json!({"status": "unready", "reason": "PostgreSQL does not answer.", "dependencies": down}),
        ),
        ("/health/version", 200, json!({"version": "1.2.3", "commit": "0123456", "schema": null})),
    ] {
        let reply = surface.call(Request::get(path).body(Body::empty()).expect("request")).await;
        assert_eq!(reply.expect(status), expected, "{path}");
    }
    surface.get("/api/tenants/acme/events", &acme.viewer).await.expect_problem(Code::Unavailable);
}

/// A standby answers every question and takes no event.
#[tokio::test]
async fn on_a_database_that_takes_no_changes_the_process_is_not_ready() {
    let surface = Surface::new().await;
    let options = surface.database.pool().connect_options().as_ref().clone();
    let pool = PgPool::connect_lazy_with(options.options([("default_transaction_read_only", "on")]));
    let (sender, _receiver) = mpsc::channel(1);
    let router = postrider_api::router(settings(pool, sender).into());
    for path in ["/health/ready", "/health"] {
        let request = request(Method::GET, path, "").body(Body::empty()).expect("request");
        let response = router.clone().oneshot(request).await.expect("infallible");
        let body = Reply::read(response).await.expect(503);
        assert_eq!(body["dependencies"]["postgresql"], "read_only", "{body}");
        let says_why = body["reason"].as_str().is_some_and(|reason| reason.contains("read-only"));
        assert_eq!(says_why, path == "/health/ready", "{body}");
    }
    // A change is refused as what passes, not as a fault inside.
    let tenant = request(Method::POST, "/api/admin/tenants", BOOTSTRAP_TOKEN)
        .header(header::CONTENT_TYPE, "application/json");
    let tenant = tenant.body(Body::from(r#"{"id":"late","name":"Late"}"#)).expect("request");
    let response = router.oneshot(tenant).await.expect("infallible");
    Reply::read(response).await.expect_problem(Code::Unavailable);
}

/// Whoever routes by readiness must not take a whole installation down for a part that is optional.
#[tokio::test]
async fn without_what_it_can_do_without_the_process_is_ready_and_says_what_is_different() {
    let surface = Surface::new().await;
    let is_up = Arc::<AtomicBool>::default();
    let shown = Arc::clone(&is_up);
    let (sender, _receiver) = mpsc::channel(1);
    let mut settings = settings(surface.database.serving_pool().clone(), sender);
    let always = OptionalDependency { name: "rabbitmq", note: "never shown", is_up: Arc::new(|| true) };
    let redis = OptionalDependency {
        name: "redis",
        note: "Limits hold in each process alone.",
        is_up: Arc::new(move || shown.load(Ordering::Relaxed)),
    };
    settings.optional = vec![always, redis];
    let router = postrider_api::router(settings.into());
    let get = async |path: &str| {
        let request = request(Method::GET, path, "").body(Body::empty()).expect("request");
        Reply::read(router.clone().oneshot(request).await.expect("infallible")).await.expect(200)
    };
    let dependencies = json!({"postgresql": "up", "rabbitmq": "up", "redis": "down"});
    let notes = json!({"redis": "Limits hold in each process alone."});
    let degraded = json!({"status": "degraded", "dependencies": dependencies, "notes": notes});
    assert_eq!(get("/health/ready").await, degraded);
    let overview = json!({"status": "up", "dependencies": dependencies, "notes": notes});
    assert_eq!(get("/health").await, overview);
    is_up.store(true, Ordering::Relaxed);
    let dependencies = json!({"postgresql": "up", "rabbitmq": "up", "redis": "up"});
    assert_eq!(get("/health/ready").await, json!({"status": "ready", "dependencies": dependencies}));
}

#[tokio::test]
async fn a_process_on_its_way_out_takes_no_new_work() {
    let surface = Surface::new().await;
    let (sender, _receiver) = mpsc::channel(1);
    let mut settings = settings(surface.database.serving_pool().clone(), sender);
    settings.is_draining = Arc::new(|| true);
    let request = request(Method::GET, "/health/ready", "").body(Body::empty()).expect("request");
    let response = postrider_api::router(settings.into()).oneshot(request).await.expect("infallible");
    assert_eq!(Reply::read(response).await.expect(503)["status"], "draining");
}

#[tokio::test]
async fn the_metrics_token_reads_the_metrics() {
    let surface = Surface::new().await;
    let reply = surface.get("/metrics", METRICS_TOKEN).await;
    assert_eq!(reply.status.as_u16(), 200);
    assert_eq!(reply.header(&header::CONTENT_TYPE), "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(reply.body, b"# TYPE something counter\nsomething 1\n");
}

#[tokio::test]
async fn a_process_that_accepts_no_events_serves_health_alone() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let (sender, _receiver) = mpsc::channel(1);
    let router =
        postrider_api::health_router(settings(surface.database.serving_pool().clone(), sender).into());
    for (path, status) in [("/health/ready", 200), ("/metrics", 200), ("/api/tenants/acme/events", 404)] {
        let token = if path == "/metrics" { METRICS_TOKEN } else { acme.viewer.as_str() };
        let request = request(Method::GET, path, token).body(Body::empty()).expect("request");
        let response = router.clone().oneshot(request).await.expect("infallible");
        assert_eq!(response.status().as_u16(), status, "{path}");
    }
}

/// Labels name routes, never tenants, and do not grow with what callers make up.
#[tokio::test]
async fn requests_are_counted_by_route() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let recording = metrics::set_default_local_recorder(&recorder);
    surface.get("/api/tenants/acme/events", &acme.viewer).await.expect(200);
    surface.get("/api/tenants/acme/events?limit=0", &acme.viewer).await;
    surface.get("/made/up", &acme.viewer).await;
    let made_up = Method::from_bytes(b"MADEUP").expect("method");
    surface.call(request(made_up, "/health", "").body(Body::empty()).expect("request")).await;
    drop(recording);
    let text = recorder.handle().render();
    for line in [
        r#"postrider_http_requests_total{method="GET",route="/api/tenants/{tenant}/events",status="200"} 1"#,
        r#"postrider_http_requests_total{method="GET",route="/api/tenants/{tenant}/events",status="400"} 1"#,
        r#"postrider_http_requests_total{method="GET",route="unknown",status="404"} 1"#,
        r#"postrider_http_requests_total{method="other",route="/health",status="405"} 1"#,
        "postrider_http_requests_in_flight 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("acme"));
}
