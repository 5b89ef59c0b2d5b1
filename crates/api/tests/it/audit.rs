//! What the audit log remembers of changes, and what of refusals.

use std::net::IpAddr;

use http::{Method, StatusCode, header};
use postrider_api::{address::Peer, refusals::Refusals};
use postrider_core::problem::Code;
use postrider_store::audit::Action;
use serde_json::{Value, json};

use crate::surface::{BOOTSTRAP_TOKEN, Surface, Tenant, request};

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
        (
            "/api/tenants/acme/subscriptions/orders-to-warehouse",
            r#"{"enabled":true,"eventTypes":["order.*"]}"#,
        ),
        ("/api/tenants/acme/applications/orders", "{}"),
        ("/api/tenants/acme/applications/orders", r#"{"enabled":true}"#),
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

/// Bodies that create something, with all that they may hold and with no more than they must.
fn creations(acme: &Tenant) -> Vec<(Action, &'static str, &str, Value)> {
    let (owner, developer) = (acme.owner.as_str(), acme.developer.as_str());
    let in_full = json!({
        "id": "vendor", "url": "https://vendor.example/", "signing": "ed25519", "method": "PUT",
        "successCodes": ["200"], "retry": {"maxAttempts": 3}, "rateLimit": {"perSecond": 5}, "maxInFlight": 4,
        "timeoutMs": 500, "headers": {"x-key": "canary"}, "credential": "crm",
    });
    let user = json!({"email": "ada@example.com", "password": "canary battery horse", "role": "viewer"});
    let subscription = json!({
        "id": "all", "applicationId": "orders", "endpointId": "warehouse", "eventTypes": ["*"],
    });
    let token_client = json!({
        "tokenUrl": "https://login.example.com/", "clientId": "canary", "clientSecret": "canary",
    });
    vec![
        (
            Action::TenantCreated,
            "/api/admin/tenants",
            BOOTSTRAP_TOKEN,
            json!({"id": "globex", "name": "Globex"}),
        ),
        (Action::ApplicationCreated, "/api/tenants/acme/applications", developer, json!({"id": "billing"})),
        (
            Action::CredentialCreated,
            "/api/tenants/acme/credentials",
            owner,
            json!({"id": "crm", "bearer": {"token": "canary"}}),
        ),
        (
            Action::CredentialCreated,
            "/api/tenants/acme/credentials",
            owner,
            json!({"id": "sms", "oauth2ClientCredentials": token_client}),
        ),
        (Action::EndpointCreated, "/api/tenants/acme/endpoints", owner, in_full),
        (
            Action::EndpointCreated,
            "/api/tenants/acme/endpoints",
            developer,
            json!({"id": "plain", "url": "https://plain.example/"}),
        ),
        (Action::SubscriptionCreated, "/api/tenants/acme/subscriptions", developer, subscription),
        (Action::KeyIssued, "/api/tenants/acme/keys", owner, json!({"id": "ci", "role": "viewer"})),
        (Action::KeyIssued, "/api/admin/tenants/acme/owner-key", BOOTSTRAP_TOKEN, json!({"id": "recovered"})),
        (Action::UserCreated, "/api/tenants/acme/users", owner, user),
    ]
}

#[tokio::test]
async fn what_is_created_names_what_was_given_and_no_value() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let creations = creations(&acme);
    for action in Action::ALL.iter().filter(|action| action.as_str().ends_with(".created")) {
        assert!(creations.iter().any(|(known, ..)| known == action), "what creates {}?", action.as_str());
    }
    for (action, path, token, body) in creations {
        surface.post_json(path, token, body.to_string()).await.expect(201);
        let newest = "SELECT action, fields FROM postrider.audit_log ORDER BY audit_id DESC LIMIT 1";
        let newest = sqlx::query_as::<_, (String, Vec<String>)>(newest);
        let (told, mut fields) = newest.fetch_one(surface.database.pool()).await.expect("an entry");
        fields.sort_unstable();
        let mut given: Vec<&String> = body.as_object().expect("an object").keys().collect();
        given.sort_unstable();
        assert_eq!((told.as_str(), fields.iter().collect()), (action.as_str(), given), "{path}: {body}");
    }
    let log = surface.get("/api/tenants/acme/audit", &acme.owner).await.expect(200);
    assert!(!log.to_string().contains("canary"), "{log}");
}

#[tokio::test]
async fn people_and_where_they_were_are_shown_to_owners_alone() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let from = async |path: &str, token: &str, body: Value| {
        let request = request(Method::POST, path, token)
            .header(header::CONTENT_TYPE, "application/json")
            .extension(Peer(IpAddr::from([192, 0, 2, 7])));
        surface.call(request.body(body.to_string().into()).expect("request")).await.expect(201)
    };
    let (email, password) = ("ada@example.com", "correct battery horse");
    let user = json!({"email": email, "password": password, "role": "developer"});
    from("/api/tenants/acme/users", &acme.owner, user).await;
    let begun = surface.log_in(email, password).await.expect(200);
    let session = begun["token"].as_str().expect("a token");
    from("/api/tenants/acme/applications", session, json!({"id": "billing"})).await;

    let told = entries(&surface, &acme.owner, "").await;
    let names = |entries: &[Value], who: &str| -> Vec<Value> {
        entries.iter().map(|entry| entry[who]["name"].clone()).collect()
    };
    assert_eq!(names(&told, "actor"), [json!(email), json!(email), json!("owner")]);
    assert_eq!(names(&told, "target"), [json!("billing"), json!(null), json!(email)]);
    assert_eq!((&told[0]["address"], &told[2]["address"]), (&json!("192.0.2.7"), &json!("192.0.2.7")));
    for spelt in [email, "Ada@Example.com"] {
        assert_eq!(entries(&surface, &acme.owner, &format!("?actor={spelt}")).await.len(), 2, "{spelt}");
    }

    for token in [&acme.viewer, &acme.developer, session] {
        let withheld = entries(&surface, token, "").await;
        assert_eq!(names(&withheld, "actor"), [json!(null), json!(null), json!("owner")]);
        assert_eq!(names(&withheld, "target"), [json!("billing"), json!(null), json!(null)]);
        for (entry, whole) in withheld.iter().zip(&told) {
            for member in ["id", "at", "action", "fields", "outcome", "reason"] {
                assert_eq!(entry[member], whole[member], "{member}");
            }
            assert_eq!((&entry["actor"]["kind"], &entry["address"]), (&whole["actor"]["kind"], &json!(null)));
        }
        // Nor does a filter tell what is not shown.
        assert_eq!(entries(&surface, token, &format!("?actor={email}")).await, Vec::<Value>::new());
        assert_eq!(entries(&surface, token, "?actor=owner").await.len(), 1);
    }
}
