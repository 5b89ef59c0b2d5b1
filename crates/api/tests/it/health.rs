//! Health and metrics, with the database there and away.

use axum::body::Body;
use http::{Request, header};
use postrider_core::problem::Code;
use serde_json::json;
use tokio::sync::mpsc;
use tower::ServiceExt as _;

use crate::{
    reply::Reply,
    surface::{METRICS_TOKEN, Surface, settings},
};

#[tokio::test]
async fn with_its_database_the_process_is_ready() {
    let surface = Surface::new().await;
    let up = json!({"postgresql": "up"});
    for (path, expected) in [
        ("/health", json!({"status": "up", "dependencies": up})),
        ("/health/live", json!({"status": "live"})),
        ("/health/ready", json!({"status": "ready", "dependencies": up})),
        ("/health/version", json!({"version": "1.2.3", "commit": "0123456", "schema": 1})),
    ] {
        let reply = surface.call(Request::get(path).body(Body::empty()).expect("request")).await;
        assert_eq!(reply.expect(200), expected, "{path}");
    }
}

#[tokio::test]
async fn without_its_database_the_process_lives_but_is_not_ready() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    surface.database.pool().close().await;
    let down = json!({"postgresql": "down"});
    for (path, status, expected) in [
        ("/health", 503, json!({"status": "down", "dependencies": down})),
        ("/health/live", 200, json!({"status": "live"})),
        ("/health/ready", 503, json!({"status": "unready", "dependencies": down})),
    ] {
        let reply = surface.call(Request::get(path).body(Body::empty()).expect("request")).await;
        assert_eq!(reply.expect(status), expected, "{path}");
    }
    surface.get("/health/version", "").await.expect_problem(Code::Unavailable);
    surface.get("/api/tenants/acme/events", &acme.viewer).await.expect_problem(Code::Unavailable);
}

#[tokio::test]
async fn a_process_on_its_way_out_takes_no_new_work() {
    let surface = Surface::new().await;
    let (sender, _receiver) = mpsc::channel(1);
    let mut settings = settings(surface.database.pool().clone(), sender);
    settings.is_draining = std::sync::Arc::new(|| true);
    let request = Request::get("/health/ready").body(Body::empty()).expect("request");
    let response = postrider_api::router(settings.into()).oneshot(request).await.expect("infallible");
    assert_eq!(Reply::read(response).await.expect(503)["status"], "draining");
}

#[tokio::test]
async fn the_metrics_token_reads_the_metrics() {
    let surface = Surface::new().await;
    let reply = surface.get("/metrics", METRICS_TOKEN).await;
    assert_eq!(reply.status.as_u16(), 200);
    assert_eq!(reply.header(header::CONTENT_TYPE), "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(reply.body, b"# TYPE something counter\nsomething 1\n");
}
