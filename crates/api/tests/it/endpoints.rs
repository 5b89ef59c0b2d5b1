//! Managing endpoints: what is stored, what is shown, and what is refused.

use postrider_core::{
    problem::Code,
    seal::{Context, Keyring, Purpose},
    signature::{Algorithm, SigningSecret},
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::surface::{Surface, Tenant};

pub(crate) const PATH: &str = "/api/tenants/acme/endpoints";
pub(crate) const HOOKS: &str = "/api/tenants/acme/endpoints/hooks";

/// Creates the endpoint `hooks` with these members beside its name and URL.
pub(crate) async fn create(surface: &Surface, acme: &Tenant, members: Value) -> Value {
    let mut body = json!({"id": "hooks", "url": "https://example.com/hooks"});
    for (name, value) in members.as_object().expect("members") {
        body[name] = value.clone();
    }
    surface.post_json(PATH, &acme.developer, body.to_string()).await.expect(201)
}

#[tokio::test]
async fn an_endpoint_has_stated_defaults() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let mut created = create(&surface, &acme, json!({})).await;
    let secret = created["signingSecret"].take();
    assert!(secret.as_str().is_some_and(|secret| secret.starts_with("whsec_")), "{secret}");

    let shown = surface.get(HOOKS, &acme.viewer).await.expect(200);
    for (name, expected) in [
        ("id", json!("hooks")),
        ("url", json!("https://example.com/hooks")),
        ("enabled", json!(true)),
        ("disabledReason", json!(null)),
        ("signing", json!("hmac-sha256")),
        ("previousKeyId", json!(null)),
        ("overlapUntil", json!(null)),
        (
            "retry",
            json!({"maxAttempts": 25, "maxAgeSeconds": 86_400, "initialDelayMs": 5_000, "maxDelayMs": 7_200_000}),
        ),
        ("rateLimit", json!(null)),
        ("maxInFlight", json!(32)),
        ("timeoutMs", json!(15_000)),
        ("headers", json!([])),
    ] {
        assert_eq!(shown[name], expected, "{name}");
        assert_eq!(created[name], expected, "{name}: the same when it was created");
    }
    assert!(shown["keyId"].as_str().is_some_and(|id| id.starts_with("sig_")), "{shown}");
}

#[tokio::test]
async fn an_endpoint_takes_every_setting() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let members = json!({
        "signing": "ed25519",
        "retry": {"maxAttempts": 3, "maxAgeSeconds": 60, "initialDelayMs": 10, "maxDelayMs": 100},
        "rateLimit": {"perSecond": 2.5},
        "maxInFlight": 1,
        "timeoutMs": 100,
        "headers": {"X-Tenant": "acme", "Authorization": "Bearer hidden"},
    });
    let created = create(&surface, &acme, members.clone()).await;
    assert!(created["signingSecret"].as_str().is_some_and(|key| key.starts_with("whpk_")), "{created}");
    let shown = surface.get(HOOKS, &acme.viewer).await.expect(200);
    for name in ["signing", "retry", "maxInFlight", "timeoutMs"] {
        assert_eq!(shown[name], members[name], "{name}");
    }
    assert_eq!(shown["rateLimit"], json!({"perSecond": 2.5, "burst": 3}));
    assert_eq!(shown["headers"], json!(["authorization", "x-tenant"]), "names, not values");
}

#[tokio::test]
async fn secrets_are_shown_once_and_stored_sealed() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let created = create(&surface, &acme, json!({"headers": {"x-api-key": "a-credential"}})).await;
    let secret = created["signingSecret"].as_str().expect("a secret");
    for path in [PATH, HOOKS] {
        let shown = surface.get(path, &acme.owner).await.expect(200).to_string();
        assert!(!shown.contains(secret) && !shown.contains("a-credential"), "{shown}");
    }

    let (key_id, sealed_secret, endpoint_id, sealed_headers): (Uuid, Vec<u8>, Uuid, Vec<u8>) =
        sqlx::query_as(
            "SELECT k.signing_key_id, k.sealed_secret, e.endpoint_id, e.sealed_headers
           FROM postrider.endpoints AS e JOIN postrider.signing_keys AS k USING (signing_key_id)
          WHERE e.name = 'hooks'",
        )
        .fetch_one(surface.database.pool())
        .await
        .expect("the endpoint");
    let keyring = Keyring::new([1; 32], None).expect("keyring");
    let open = |purpose, row, sealed: &[u8]| {
        keyring.open(&Context { purpose, tenant: acme.id, row }, sealed).expect("it opens")
    };
    let stored = open(Purpose::SigningSecret, key_id, &sealed_secret);
    let stored = SigningSecret::from_stored(Algorithm::HmacSha256, &stored).expect("a secret");
    assert_eq!(*stored.reveal(), secret);
    let stored = open(Purpose::EndpointHeaders, endpoint_id, &sealed_headers);
    assert_eq!(stored.as_slice(), b"x-api-key:a-credential\n");
}

#[tokio::test]
async fn rotating_gives_a_new_secret_and_overlaps_the_old_one() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let created = create(&surface, &acme, json!({"retry": {"maxAgeSeconds": 3600}})).await;
    let path = format!("{HOOKS}/rotate-secret");

    let first = surface.post(&path, &acme.developer).await.expect(200);
    assert_ne!(first["signingSecret"], created["signingSecret"]);
    assert_ne!(first["keyId"], created["keyId"]);
    assert_eq!(first["previousKeyId"], created["keyId"]);
    let overlap: f64 = sqlx::query_scalar(
        "SELECT extract(epoch FROM overlap_until - updated_at)::float8 FROM postrider.endpoints WHERE name = 'hooks'",
    )
    .fetch_one(surface.database.pool())
    .await
    .expect("the endpoint");
    assert!((overlap - 3600.0).abs() < 0.001, "as long as a delivery may stay open, not {overlap} s");

    let sudden = r#"{"overlapSeconds":0,"force":true}"#;
    let sudden = surface.post_json(&path, &acme.developer, sudden).await.expect(200);
    assert_eq!((&sudden["previousKeyId"], &sudden["overlapUntil"]), (&Value::Null, &Value::Null));
    let switched = surface.post_json(&path, &acme.developer, r#"{"signing":"ed25519"}"#).await.expect(200);
    assert_eq!(switched["signing"], "ed25519");
    let kept = surface.post_json(&path, &acme.developer, r#"{"force":true}"#).await.expect(200);
    assert_eq!(kept["signing"], "ed25519", "the algorithm stays unless another is named");

    end_overlap(&surface).await;
    let last = surface.post_json(&path, &acme.developer, "null").await.expect(200);
    assert_ne!(last["keyId"], kept["keyId"], "no body is no reason not to rotate");

    for (body, field) in [
        (r#"{"overlapSeconds":2592001}"#, "overlapSeconds"),
        (r#"{"overlapSeconds":-1}"#, "overlapSeconds"),
        (r#"{"signing":"none"}"#, "signing"),
        (r#"{"secret":"whsec_mine"}"#, "secret"),
        (r#"{"force":null}"#, "force"),
    ] {
        let problem =
            surface.post_json(&path, &acme.developer, body).await.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"], field, "{body}: {problem}");
    }
    assert_eq!(surface.get(HOOKS, &acme.viewer).await.expect(200)["keyId"], last["keyId"]);
}

#[tokio::test]
async fn a_repeated_rotation_does_not_give_up_the_key_that_the_first_one_promised() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let created = create(&surface, &acme, json!({})).await;
    let path = format!("{HOOKS}/rotate-secret");
    let rotate = async |body: &'static str| surface.post_json(&path, &acme.developer, body).await;

    let first = rotate("{}").await.expect(200);
    for body in ["{}", "null", r#"{"overlapSeconds":0}"#, r#"{"overlapSeconds":60,"force":false}"#] {
        let problem = rotate(body).await.expect_problem(Code::OverlapRunning);
        let until = first["overlapUntil"].as_str().expect("a time");
        assert!(problem["detail"].as_str().expect("text").contains(until), "{body}: {problem}");
    }
    let kept = surface.get(HOOKS, &acme.viewer).await.expect(200);
    assert_eq!((&kept["keyId"], &kept["previousKeyId"]), (&first["keyId"], &created["keyId"]));

    let forced = rotate(r#"{"force":true}"#).await.expect(200);
    assert_eq!(forced["previousKeyId"], first["keyId"]);
    rotate("{}").await.expect_problem(Code::OverlapRunning);
    end_overlap(&surface).await;
    let after = rotate(r#"{"overlapSeconds":0}"#).await.expect(200);
    assert_eq!(after["previousKeyId"], Value::Null);
    rotate("{}").await.expect(200);
}

async fn end_overlap(surface: &Surface) {
    sqlx::query("UPDATE postrider.endpoints SET overlap_until = now() WHERE overlap_until IS NOT NULL")
        .execute(surface.database.pool())
        .await
        .expect("changed");
}

#[tokio::test]
async fn a_disabled_endpoint_gets_no_new_deliveries() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let publish = async || {
        let path = "/api/tenants/acme/applications/orders/events/order.created";
        surface.post_json(path, &acme.publish, "{}").await.expect(202)["deliveries"].clone()
    };
    let warehouse = format!("{PATH}/warehouse");
    assert_eq!(publish().await, 1);
    let disabled = surface.patch(&warehouse, &acme.developer, r#"{"enabled":false}"#).await.expect(200);
    assert_eq!((&disabled["enabled"], &disabled["disabledReason"]), (&false.into(), &"requested".into()));
    assert_eq!(publish().await, 0);
    let enabled = surface.patch(&warehouse, &acme.developer, r#"{"enabled":true}"#).await.expect(200);
    assert_eq!((&enabled["enabled"], &enabled["disabledReason"]), (&true.into(), &Value::Null));
    assert_eq!(publish().await, 1);
}
