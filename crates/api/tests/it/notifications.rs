//! Notifications: one body to one approved endpoint, and what is refused.

use axum::body::Body;
use http::{Method, Request, header};
use postrider_core::{id::EndpointId, problem::Code, seal::Purpose, signature::Algorithm, token::Token};
use postrider_store::{
    edit,
    endpoints::{self, Approval, NewEndpoint, Settings},
    registry,
    signing_keys::NewSigningKey,
    tenants,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::surface::{Surface, Tenant, name_of, peppers, request};

const SMS: &str = "/api/tenants/acme/applications/orders/notifications/sms";

/// Declares an approved endpoint that lists the applications of these names.
pub(crate) async fn declare(surface: &Surface, tenant: &Tenant, name: &str, applications: &[&str]) {
    let id = EndpointId::from_uuid(Uuid::now_v7());
    let context = postrider_core::seal::Context {
        purpose: Purpose::EndpointQuery,
        tenant: tenant.id,
        row: id.as_uuid(),
    };
    let keyring = postrider_core::seal::Keyring::new([1; 32], None).expect("keyring");
    let settings = Settings {
        sealed_query: Some(keyring.seal([7; 12], &context, b"token=hidden")),
        ..Settings::new("https://sms.example/v2/messages".to_owned())
    };
    let name = name_of(name);
    let key =
        NewSigningKey { id: Uuid::now_v7().into(), algorithm: Algorithm::HmacSha256, sealed_secret: b"x" };
    let approval = Some(Approval { registry_version: 1, allows_query: true });
    let new = NewEndpoint { id, name: &name, settings: &settings, approval, key };
    let mut transaction = edit::begin(surface.database.pool()).await.expect("transaction");
    endpoints::create(&mut transaction, tenant.id, new).await.expect("endpoint");
    let names: Vec<_> = applications.iter().map(|name| name_of(name)).collect();
    let names: Vec<_> = names.iter().collect();
    let known = registry::applications(&mut transaction, tenant.id, &names).await.expect("applications");
    let ids: Vec<_> = known.into_iter().map(|(_, id)| id).collect();
    assert_eq!(ids.len(), applications.len(), "the applications exist");
    registry::set_applications(&mut transaction, tenant.id, id, &ids).await.expect("listed");
    transaction.commit().await.expect("commit");
}

fn notify(path: &str, token: &str, key: Option<&str>, body: impl Into<Body>) -> Request<Body> {
    let mut request = request(Method::POST, path, token).header(header::CONTENT_TYPE, "text/xml");
    if let Some(key) = key {
        request = request.header("Idempotency-Key", key);
    }
    request.body(body.into()).expect("request")
}

#[tokio::test]
async fn a_key_makes_one_notification_in_a_key_space_of_its_own() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    declare(&surface, &acme, "sms", &["orders"]).await;
    declare(&surface, &acme, "mail", &["orders"]).await;

    let first = surface.call(notify(SMS, &acme.publish, Some("k1"), "<a/>")).await.expect(202);
    assert_eq!(first["duplicate"], false);
    let path = format!("/api/tenants/acme/deliveries/{}", first["deliveryId"].as_str().expect("an id"));
    let delivery = surface.get(&path, &acme.viewer).await.expect(200);
    assert_eq!((&delivery["eventId"], &delivery["endpointId"]), (&first["id"], &json!("sms")));

    let repeat = surface.call(notify(SMS, &acme.publish, Some("k1"), "<a/>")).await.expect(200);
    assert_eq!((&repeat["duplicate"], &repeat["deliveryId"]), (&json!(true), &first["deliveryId"]));
    let clashes = [
        notify(SMS, &acme.publish, Some("k1"), "<b/>"),
        notify(&SMS.replace("sms", "mail"), &acme.publish, Some("k1"), "<a/>"),
        {
            let mut other = notify(SMS, &acme.publish, Some("k1"), "<a/>");
            other.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
            other
        },
    ];
    for clash in clashes {
        surface.call(clash).await.expect_problem(Code::IdempotencyConflict);
    }
    // The same key names an event as well.
    let event = "/api/tenants/acme/applications/orders/events/order.created";
    let request = request(Method::POST, event, &acme.publish).header("Idempotency-Key", "k1");
    let request = request.header(header::CONTENT_TYPE, "application/json").body("{}".into());
    surface.call(request.expect("request")).await.expect(202);
    assert_eq!(surface.stored_events().await, 2);
}

#[tokio::test]
async fn any_body_is_kept_byte_for_byte_under_its_own_content_type() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    declare(&surface, &acme, "sms", &["orders"]).await;
    for (content_type, body) in [
        (Some("application/x-www-form-urlencoded"), b"a=1&b=%00".to_vec()),
        (Some("text/xml; charset=\"utf-16\""), b"\xff\xfe\x00".to_vec()),
        (Some("application/json"), b"{ not json".to_vec()),
        (None, Vec::new()),
        (None, vec![0; 1024 * 1024]),
    ] {
        let mut request = request(Method::POST, SMS, &acme.publish);
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request.body(Body::from(body.clone())).expect("request");
        let accepted = surface.call(request).await.expect(202);
        let id = accepted["id"].as_str().expect("an id");
        assert_eq!(surface.stored_body(id).await, body, "{content_type:?}");
        let stored: String =
            sqlx::query_scalar("SELECT content_type FROM postrider.events ORDER BY event_id DESC LIMIT 1")
                .fetch_one(surface.database.pool())
                .await
                .expect("the event");
        assert_eq!(stored, content_type.unwrap_or("application/octet-stream"));
    }
    let events = surface.stored_events().await;
    let large = notify(SMS, &acme.publish, None, vec![0; 1024 * 1024 + 1]);
    surface.call(large).await.expect_problem(Code::BodyTooLarge);
    assert_eq!(surface.stored_events().await, events);
}

#[tokio::test]
async fn only_an_approved_endpoint_that_lists_the_application_is_found() {
    let surface = Surface::new().await;
    let (acme, globex) = (surface.tenant("acme").await, surface.tenant("globex").await);
    declare(&surface, &acme, "sms", &["orders"]).await;
    declare(&surface, &acme, "unlisted", &[]).await;
    declare(&surface, &globex, "theirs", &["orders"]).await;
    for name in ["unknown", "unlisted", "warehouse", "theirs", "Not-A-Name", "sms%0d%0ax"] {
        let path = SMS.replace("sms", name);
        surface.call(notify(&path, &acme.publish, None, "x")).await.expect_problem(Code::NotFound);
    }
    surface.call(notify(SMS, &globex.publish, None, "x")).await.expect_problem(Code::NotFound);
    surface.call(notify(SMS, &acme.owner, None, "x")).await.expect_problem(Code::Forbidden);
    assert_eq!(surface.stored_events().await, 0);

    let endpoint = "/api/tenants/acme/endpoints/sms";
    surface.call(notify(SMS, &acme.publish, None, "x")).await.expect(202);
    surface.patch(endpoint, &acme.developer, r#"{"enabled":false}"#).await.expect(200);
    surface.call(notify(SMS, &acme.publish, None, "x")).await.expect_problem(Code::EndpointDisabled);
    surface.patch(endpoint, &acme.developer, r#"{"enabled":true}"#).await.expect(200);
    surface.call(notify(SMS, &acme.publish, None, "x")).await.expect(202);
}

#[tokio::test]
async fn a_dead_letter_of_an_application_that_is_no_longer_listed_is_not_sent_again() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    declare(&surface, &acme, "sms", &["orders"]).await;
    let sent = surface.call(notify(SMS, &acme.publish, None, "x")).await.expect(202);
    let run = async |statement| {
        sqlx::query(statement).execute(surface.database.pool()).await.expect("executed");
    };
    run("WITH ended AS (DELETE FROM postrider.delivery_queue RETURNING *)
         INSERT INTO postrider.deliveries SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
                signing_key_id, accepted_at, now(), 'dead_lettered', 'rejected', 1 FROM ended")
    .await;
    run("DELETE FROM postrider.endpoint_applications").await;
    let path = format!("/api/tenants/acme/deliveries/{}", sent["deliveryId"].as_str().expect("an id"));
    let refused = surface.post(&format!("{path}/retry"), &acme.developer).await;
    let problem = refused.expect_problem(Code::NotRetryable);
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("no longer lists")), "{problem}");
    assert_eq!(surface.get(&path, &acme.viewer).await.expect(200)["state"], "dead_lettered");

    let filter = r#"{"filter":{"applicationId":"orders"}}"#;
    let preview = surface.post_json("/api/tenants/acme/replays", &acme.developer, filter).await.expect(201);
    assert_eq!((&preview["matches"], &preview["skipped"]["notListed"]), (&json!(1), &json!(0)));
}

#[tokio::test]
async fn the_registry_alone_changes_what_it_declares() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    declare(&surface, &acme, "sms", &["orders"]).await;
    let path = "/api/tenants/acme/endpoints/sms";
    let shown = surface.get(path, &acme.viewer).await.expect(200);
    assert_eq!(
        (&shown["approved"], &shown["url"]),
        (&json!(true), &json!("https://sms.example/v2/messages"))
    );
    assert!(!shown.to_string().contains("hidden"), "{shown}");
    for change in [
        json!({"url": "https://example.com/"}),
        json!({"enabled": false, "timeoutMs": 500}),
        json!({"headers": {"x-a": "1"}}),
        json!({"method": "PUT"}),
        json!({"credential": null}),
    ] {
        let reply = surface.patch(path, &acme.owner, change.to_string()).await;
        let problem = reply.expect_problem(Code::EndpointApproved);
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("registry")), "{problem}");
    }
    surface.delete(path, &acme.owner).await.expect_problem(Code::EndpointApproved);
    assert_eq!(surface.get(path, &acme.viewer).await.expect(200)["enabled"], true);
    surface.patch(path, &acme.developer, r#"{"enabled":false}"#).await.expect(200);
}

#[tokio::test]
async fn a_tenant_of_approved_vendors_only_cannot_choose_urls() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    sqlx::query("UPDATE postrider.tenants SET approved_only = true WHERE name = 'acme'")
        .execute(surface.database.pool())
        .await
        .expect("the policy is set");
    let new = json!({"id": "own", "url": "https://example.com/"}).to_string();
    let reply = surface.post_json("/api/tenants/acme/endpoints", &acme.owner, new).await;
    assert_eq!(reply.status, 403);
    reply.expect_problem(Code::ApprovedOnly);
    let path = "/api/tenants/acme/endpoints/warehouse";
    let moved = json!({"url": "https://example.com/"}).to_string();
    surface.patch(path, &acme.owner, moved).await.expect_problem(Code::ApprovedOnly);
    surface.patch(path, &acme.owner, r#"{"timeoutMs":500}"#).await.expect(200);
}

/// The policy changes while a request that was let in before waits for its turn.
#[tokio::test]
async fn of_a_url_and_the_policy_against_it_the_later_one_sees_the_earlier() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let pool = surface.database.pool();
    let tenant = tenants::get_by_name(pool, &name_of("acme")).await.expect("read").expect("it exists");
    let new = json!({"id": "own", "url": "https://example.com/"}).to_string();
    let moved = json!({"url": "https://example.com/moved"}).to_string();
    for is_new in [true, false] {
        let mut policy = edit::begin(pool).await.expect("a transaction begins");
        tenants::set_limits(&mut policy, tenant.id, &tenant.limits, true).await.expect("set");
        let asking = async {
            if is_new {
                surface.post_json("/api/tenants/acme/endpoints", &acme.owner, new.clone()).await
            } else {
                surface.patch("/api/tenants/acme/endpoints/warehouse", &acme.owner, moved.clone()).await
            }
        };
        let deciding = async {
            let waiting = "SELECT count(*) FROM pg_stat_activity
                            WHERE datname = current_database() AND wait_event = 'advisory'";
            while sqlx::query_scalar::<_, i64>(waiting).fetch_one(pool).await.expect("a look") == 0 {
                tokio::task::yield_now().await;
            }
            policy.commit().await.expect("commit");
        };
        let (reply, ()) = tokio::join!(asking, deciding);
        reply.expect_problem(Code::ApprovedOnly);
        sqlx::query("UPDATE postrider.tenants SET approved_only = false")
            .execute(pool)
            .await
            .expect("the policy is lifted");
    }
    let kept = surface.get("/api/tenants/acme/endpoints/warehouse", &acme.viewer).await.expect(200);
    assert_ne!(kept["url"], "https://example.com/moved");
}

#[tokio::test]
async fn an_endpoint_is_deleted_with_its_subscriptions_and_its_name_is_free() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let path = "/api/tenants/acme/endpoints/warehouse";
    let event = "/api/tenants/acme/applications/orders/events/order.created";
    surface.delete(path, &acme.viewer).await.expect_problem(Code::Forbidden);
    assert_eq!(surface.post_json(event, &acme.publish, "{}").await.expect(202)["deliveries"], 1);
    assert_eq!(surface.delete(path, &acme.developer).await.status, 204);
    surface.delete(path, &acme.developer).await.expect_problem(Code::NotFound);
    surface.get(path, &acme.viewer).await.expect_problem(Code::NotFound);
    let list = |path: &'static str| surface.get(path, &acme.viewer);
    assert_eq!(list("/api/tenants/acme/endpoints").await.expect(200)["data"], Value::Array(Vec::new()));
    assert_eq!(list("/api/tenants/acme/subscriptions").await.expect(200)["data"], Value::Array(Vec::new()));
    assert_eq!(surface.post_json(event, &acme.publish, "{}").await.expect(202)["deliveries"], 0);
    // History still names it.
    let deliveries = list("/api/tenants/acme/deliveries").await.expect(200);
    assert_eq!(deliveries["data"][0]["endpointId"], "warehouse");
    let again = json!({"id": "warehouse", "url": "https://example.com/"}).to_string();
    surface.post_json("/api/tenants/acme/endpoints", &acme.developer, again).await.expect(201);
    let of_both = list("/api/tenants/acme/deliveries?endpointId=warehouse").await.expect(200);
    assert_eq!(of_both["data"], deliveries["data"], "the history of a name goes on");
    let body = json!({"filter": {"endpointId": "warehouse"}}).to_string();
    surface.post_json("/api/tenants/acme/replays", &acme.developer, body).await.expect(201);
}

#[tokio::test]
async fn methods_and_success_codes_are_set_within_bounds() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let path = "/api/tenants/acme/endpoints/warehouse";
    let change = json!({"method": "PATCH", "successCodes": ["409", "200-204"]}).to_string();
    let changed = surface.patch(path, &acme.developer, change).await.expect(200);
    assert_eq!((&changed["method"], &changed["successCodes"]), (&json!("PATCH"), &json!(["200-204", "409"])));
    let back =
        surface.patch(path, &acme.developer, r#"{"method":null,"successCodes":null}"#).await.expect(200);
    assert_eq!((&back["method"], &back["successCodes"]), (&json!("POST"), &json!(["200-299"])));
    for (change, field) in [
        (json!({"method": "GET"}), "method"),
        (json!({"method": 1}), "method"),
        (json!({"successCodes": ["301"]}), "successCodes"),
        (json!({"successCodes": ["429"]}), "successCodes"),
        (json!({"successCodes": []}), "successCodes"),
        (json!({"successCodes": "200"}), "successCodes"),
    ] {
        let reply = surface.patch(path, &acme.developer, change.to_string()).await;
        let problem = reply.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
    }
}

/// The token came over to the next pepper while a plan in memory knew it by its hash under the one before, and that plan is out
/// of date: the newer one is for whoever holds the same token, and for nobody else.
#[tokio::test]
async fn a_plan_from_before_the_token_came_over_to_the_next_pepper_is_read_again() {
    let both = || peppers(3, [3; 32], Some([2; 32]));
    let other = peppers(3, [4; 32], None);
    let cases = [("sms", true), ("mail", true), ("sms", false)];
    let cases = cases.into_iter().flat_map(|(endpoint, was_enabled)| {
        [(endpoint, was_enabled, true, 202), (endpoint, was_enabled, false, 401)]
    });
    for (endpoint, was_enabled, comes_over, expected) in cases {
        let surface = Surface::with(|settings| settings.peppers = both()).await;
        let acme = surface.tenant("acme").await;
        declare(&surface, &acme, "sms", &["orders"]).await;
        let token = Token::parse(&acme.publish).expect("a token");
        let store = async |hash: [u8; 32], generation: i32, is_enabled: bool| {
            sqlx::query(
                "UPDATE postrider.applications
                    SET token_hash = $1, pepper_generation = $2, enabled = $3, routing_version = routing_version + 1
                  WHERE kind = 'publisher'",
            )
            .bind(hash.as_slice())
            .bind(generation)
            .bind(is_enabled)
            .execute(surface.database.pool())
            .await
            .expect("stored");
        };
        store(both().previous_hash(&token).expect("a pepper before"), 2, was_enabled).await;
        let seen = if was_enabled { 202 } else { 403 };
        surface.call(notify(SMS, &acme.publish, None, "<a/>")).await.expect(seen);
        // What the plan in memory does not have, or does not let in, is looked for in the newest one.
        declare(&surface, &acme, "mail", &["orders"]).await;
        store(if comes_over { both().hash(&token) } else { other.hash(&token) }, 3, true).await;
        let path = format!("/api/tenants/acme/applications/orders/notifications/{endpoint}");
        surface.call(notify(&path, &acme.publish, None, "<b/>")).await.expect(expected);
    }
}
