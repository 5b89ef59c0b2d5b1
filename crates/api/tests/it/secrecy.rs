//! Secrets, tokens and bodies appear in no log line, at the most talkative level.

use http::header;
use postrider_testkit::log::Log;
use serde_json::json;

use crate::surface::{BOOTSTRAP_TOKEN, METRICS_TOKEN, SESSION_SECRET, Surface};

#[tokio::test]
async fn no_log_line_holds_a_secret() {
    const CANARY: &str = "canary-1f2e3d";
    let (log, _logging) = Log::start();

    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let events = "/api/tenants/acme/applications/orders/events";
    for body in [format!(r#"{{"a":"{CANARY}"}}"#), format!("{{{CANARY}"), CANARY.to_owned()] {
        surface.post_json(&format!("{events}/order.created"), &acme.publish, body.clone()).await;
        surface
            .post_json(events, &acme.publish, format!(r#"{{"events":[{{"type":"a","data":{body}}}]}}"#))
            .await;
        surface.post_json("/api/tenants/acme/endpoints", &acme.owner, body).await;
    }
    let endpoint = format!(
        r#"{{"id":"billing","url":"https://billing.example/{CANARY}","headers":{{"Authorization":"Bearer {CANARY}"}}}}"#
    );
    let created = surface.post_json("/api/tenants/acme/endpoints", &acme.owner, endpoint).await.expect(201);
    let secret = created["signingSecret"].as_str().expect("secret").to_owned();
    surface.get(&format!("/api/tenants/acme/events?cursor={CANARY}"), &acme.viewer).await;
    surface.get("/metrics", METRICS_TOKEN).await;
    surface.get("/metrics", BOOTSTRAP_TOKEN).await;
    surface.get("/metrics", CANARY).await;
    let rotated = surface.post("/api/tenants/acme/applications/orders/rotate-token", &acme.owner).await;
    assert_eq!(rotated.header(&header::CACHE_CONTROL), "no-store");
    let token = rotated.expect(200)["publishToken"].as_str().expect("token").to_owned();
    let password = format!("a password with {CANARY}");
    for body in [
        json!({"email": "ada@example.com", "password": password, "role": "viewer"}),
        json!({"email": "ada@example.com", "password": CANARY, "role": "viewer"}),
    ] {
        surface.post_json("/api/tenants/acme/users", &acme.owner, body.to_string()).await;
    }
    let begun = surface.log_in("ada@example.com", &password).await.expect(200);
    let session = begun["token"].as_str().expect("token").to_owned();
    surface.get("/api/tenants/acme/applications", &session).await.expect(200);
    surface.get("/api/tenants/acme/applications", &format!("{session}x")).await;
    for _ in 0..7 {
        surface.log_in("ada@example.com", CANARY).await;
    }
    let issued =
        surface.post_json("/api/tenants/acme/keys", &acme.owner, r#"{"id":"ci","role":"viewer"}"#).await;
    let key = issued.expect(201)["token"].as_str().expect("token").to_owned();
    surface.database.serving_pool().close().await;
    surface.log_in("ada@example.com", &password).await;
    surface.get("/api/tenants/acme/applications", &session).await;
    surface.post_json(&format!("{events}/order.created"), &acme.publish, format!("\"{CANARY}\"")).await;

    let text = log.text();
    assert!(text.contains("request answered"), "nothing was logged");
    let secrets =
        [&acme.owner, &acme.viewer, &acme.publish, &secret, &token, &session, &key].map(String::as_str);
    let session_secret = std::str::from_utf8(SESSION_SECRET).expect("ASCII");
    let given = [CANARY, BOOTSTRAP_TOKEN, METRICS_TOKEN, session_secret, "$argon2id$"];
    for secret in secrets.into_iter().chain(given) {
        let leak = text.lines().find(|line| line.contains(secret));
        assert_eq!(leak, None, "{secret} was logged");
    }
}
