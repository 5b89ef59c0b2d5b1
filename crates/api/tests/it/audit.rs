//! What the audit log remembers of changes, and what of refusals.

use http::StatusCode;
use postrider_api::refusals::Refusals;
use postrider_core::problem::Code;
use serde_json::Value;

use crate::surface::{BOOTSTRAP_TOKEN, Surface};

async fn entries(surface: &Surface, token: &str, query: &str) -> Vec<Value> {
    let answer = surface.get(&format!("/api/tenants/acme/audit{query}"), token).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    answer.json()["data"].as_array().expect("data").clone()
}

#[tokio::test]
async fn each_change_is_remembered_with_who_and_what() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let base = "/api/tenants/acme";
    let secret = "canary-0123456789";
    for (method, path, body, expected) in [
        ("POST", "/applications", r#"{"id":"billing"}"#.to_owned(), "application.created"),
        ("PATCH", "/applications/billing", r#"{"enabled":false}"#.to_owned(), "application.changed"),
        ("POST", "/applications/billing/rotate-token", String::new(), "application.token_rotated"),
        (
            "POST",
            "/endpoints",
            format!(r#"{{"id":"vendor","url":"https://vendor.example/","headers":{{"x-key":"{secret}"}}}}"#),
            "endpoint.created",
        ),
        (
            "PATCH",
            "/endpoints/vendor",
            format!(r#"{{"headers":{{"x-key":"{secret}2"}},"timeoutMs":1000}}"#),
            "endpoint.changed",
        ),
        ("POST", "/endpoints/vendor/rotate-secret", String::new(), "endpoint.secret_rotated"),
        (
            "POST",
            "/subscriptions",
            r#"{"id":"all","applicationId":"billing","endpointId":"vendor","eventTypes":["*"]}"#.to_owned(),
            "subscription.created",
        ),
        ("PATCH", "/subscriptions/all", r#"{"enabled":false}"#.to_owned(), "subscription.changed"),
        ("DELETE", "/subscriptions/all", String::new(), "subscription.deleted"),
    ] {
        let path = format!("{base}{path}");
        let answer = match method {
            "POST" if body.is_empty() => surface.post(&path, &acme.developer).await,
            "POST" => surface.post_json(&path, &acme.developer, body).await,
            "PATCH" => surface.patch(&path, &acme.developer, body).await,
            _ => surface.delete(&path, &acme.developer).await,
        };
        assert!(answer.status.is_success(), "{method} {path}: {answer:?}");
        let newest = &entries(&surface, &acme.viewer, "?limit=1").await[0];
        assert_eq!(newest["action"], expected, "{newest}");
        assert_eq!(
            (&newest["actor"]["kind"], &newest["actor"]["name"]),
            (&"management_key".into(), &"developer".into())
        );
        assert_eq!(newest["outcome"], "done");
        assert!(!newest.to_string().contains(secret), "{newest}");
    }
    let changed = entries(&surface, &acme.viewer, "?action=endpoint.changed").await;
    assert_eq!(changed.len(), 1);
    assert_eq!(changed[0]["fields"], serde_json::json!(["timeoutMs", "headers"]));
    assert_eq!(entries(&surface, &acme.viewer, "?actor=owner").await.len(), 0);
    for nobody in ["%00", "%C3%A4", &"x".repeat(255)] {
        let refused = surface.get(&format!("/api/tenants/acme/audit?actor={nobody}"), &acme.viewer).await;
        refused.expect_problem(Code::BadRequest);
    }
    let unknown = surface.get(&format!("{base}/audit?action=endpoint.exploded"), &acme.viewer).await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn what_changes_nothing_leaves_no_entry() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    for (path, body) in [
        ("/api/tenants/acme/endpoints/warehouse", "{}"),
        ("/api/tenants/acme/endpoints/warehouse", r#"{"enabled":true}"#),
        ("/api/tenants/acme/subscriptions/orders-to-warehouse", "{}"),
        ("/api/tenants/acme/applications/orders", "{}"),
    ] {
        let answer = surface.patch(path, &acme.developer, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
    }
    let refused =
        surface.patch("/api/tenants/acme/endpoints/warehouse", &acme.developer, r#"{"timeoutMs":0}"#).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(entries(&surface, &acme.viewer, "").await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_tenant_begins_its_log_and_sees_no_other() {
    let surface = Surface::new().await;
    let globex = surface.tenant("globex").await;
    let answer =
        surface.post_json("/api/admin/tenants", BOOTSTRAP_TOKEN, r#"{"id":"acme","name":"Acme"}"#).await;
    let created = answer.expect(201);
    let owner = created["ownerToken"].as_str().expect("a token");
    let own = entries(&surface, owner, "").await;
    assert_eq!(
        (own.len(), &own[0]["action"], &own[0]["actor"]["kind"]),
        (1, &"tenant.created".into(), &"bootstrap".into())
    );
    let foreign = surface.get("/api/tenants/globex/audit", &globex.viewer).await;
    assert_eq!(foreign.json()["data"], serde_json::json!([]));
}

#[tokio::test]
async fn a_known_credential_that_is_refused_is_remembered() {
    let (refusals, waiting) = Refusals::new();
    let surface = Surface::with(|settings| settings.refusals = refusals).await;
    let mut log = tokio::task::JoinSet::new();
    log.spawn(waiting.write(surface.database.pool().clone()));
    let acme = surface.tenant("acme").await;
    let globex = surface.tenant("globex").await;
    for (token, path, expected) in [
        (&acme.viewer, "/api/tenants/acme/applications", Code::Forbidden),
        (&acme.publish, "/api/tenants/acme/applications", Code::Forbidden),
        (&acme.developer, "/api/tenants/globex/applications", Code::NotFound),
        (&globex.viewer, "/api/tenants/acme/applications", Code::NotFound),
    ] {
        let answer = surface.post_json(path, token, r#"{"id":"x"}"#).await;
        answer.expect_problem(expected);
    }
    let database = surface.database.pool().clone();
    let refused = || async {
        let query = "SELECT actor_name, reason, target_name FROM postrider.audit_log WHERE outcome = 'refused' ORDER BY actor_name, reason";
        sqlx::query_as::<_, (String, String, String)>(query).fetch_all(&database).await.expect("the log")
    };
    let mut found = refused().await;
    while found.len() < 4 {
        tokio::task::yield_now().await;
        found = refused().await;
    }
    let operation = "POST /api/tenants/{tenant}/applications";
    let expected = [
        ("developer", "not_found"),
        ("orders", "forbidden"),
        ("viewer", "forbidden"),
        ("viewer", "not_found"),
    ];
    let expected =
        expected.map(|(actor, reason)| (actor.to_owned(), reason.to_owned(), operation.to_owned()));
    assert_eq!(found, expected);
    // Each tenant reads of its own credentials, whatever they were pointed at.
    assert_eq!(entries(&surface, &acme.owner, "?action=access.refused").await.len(), 3);
    drop(log);
}
