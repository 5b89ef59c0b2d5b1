//! What approved vendors want to see reaches them and nobody else: no log at any level, no metric, no read and no column
//! shows it, nor what their token endpoints say.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use postrider_testkit::{
    postgres::Database,
    receiver::{Answer, Receiver},
};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use crate::{
    api::send_raw,
    server::{METRICS_TOKEN, Publisher, Server},
};

/// Stands in every value, and in everything that token endpoints and vendors answer.
const CANARY: &str = "canary-5f07c2";
const DELIVERED: usize = 4;

/// A login that fails first, with the mark in each answer; each failure costs the test a pause.
fn let_fail_first(login: &Receiver) {
    let token =
        |kind| format!(r#"{{"access_token":"token-{CANARY}","token_type":"{kind}","expires_in":3600}}"#);
    login.queue([
        Answer::status(400).header("x-said", CANARY).body(format!(r#"{{"error":"{CANARY}"}}"#)),
        Answer::ok().body(token(CANARY)),
    ]);
    login.answer_with(move |_| Answer::ok().body(token("bearer")));
}

/// An endpoint for each kind of credential, all of which get every event.
async fn employ(publisher: &Publisher, vendor: &Receiver, login: &Receiver) {
    let retry = json!({"initialDelayMs": 200, "maxDelayMs": 500, "maxAttempts": 100});
    for (name, member, value) in [
        ("bearer", "bearer", json!({"token": CANARY})),
        ("basic", "basic", json!({"username": CANARY, "password": CANARY})),
        ("header", "header", json!({"name": "x-key", "value": CANARY})),
        (
            "oauth2",
            "oauth2ClientCredentials",
            json!({
                "tokenUrl": login.url(&format!("/{CANARY}")), "clientId": CANARY, "clientSecret": CANARY,
                "scope": CANARY, "audience": CANARY,
            }),
        ),
    ] {
        publisher.manage("POST", "/credentials", json!({"id": name, member: value}), 201).await;
        publisher.manage("POST", "/credentials", json!({"id": name, member: value}), 409).await;
        publisher.manage("PUT", &format!("/credentials/{name}"), json!({member: value}), 200).await;
        let damaged = json!({member: value, "more": CANARY});
        publisher.manage("PUT", &format!("/credentials/{name}"), damaged, 422).await;
        let endpoint =
            json!({"id": name, "url": vendor.url(&format!("/{name}")), "credential": name, "retry": retry});
        publisher.manage("POST", "/endpoints", endpoint, 201).await;
        let subscription =
            json!({"id": name, "applicationId": "orders", "endpointId": name, "eventTypes": ["*"]});
        publisher.manage("POST", "/subscriptions", subscription, 201).await;
    }
}

/// Everything that a tenant can read, once all deliveries have arrived.
async fn everything_read(publisher: &Publisher) -> Vec<String> {
    let delivered = loop {
        let answer = publisher.manage("GET", "/deliveries?state=delivered", Value::Null, 200).await;
        match answer.body["data"].as_array() {
            Some(delivered) if delivered.len() == DELIVERED => break delivered.clone(),
            Some(_) | None => {}
        }
    };
    let mut paths: Vec<String> =
        ["credentials", "endpoints", "subscriptions", "deliveries", "events", "audit", "credentials/oauth2"]
            .map(|kind| format!("/{kind}"))
            .into();
    for delivery in delivered {
        paths.push(format!("/deliveries/{}/attempts", delivery["id"].as_str().expect("an id")));
    }
    let mut read = Vec::new();
    for path in paths {
        read.push(publisher.manage("GET", &path, Value::Null, 200).await.body.to_string());
    }
    read
}

/// Every row of every table as text, in which bytes stand in hexadecimal.
async fn rows_with(database: &Database, mark: &str) -> Vec<String> {
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'postrider'",
    )
    .fetch_all(database.pool())
    .await
    .expect("tables");
    let mut found = Vec::new();
    for table in tables {
        let query = format!("SELECT t::text FROM {table} AS t WHERE t::text LIKE '%' || $1 || '%'");
        let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(query))
            .bind(mark)
            .fetch_all(database.pool())
            .await
            .expect("rows");
        found.extend(rows);
    }
    found
}

#[tokio::test]
async fn a_vendors_credential_is_read_by_that_vendor_alone() {
    let database = Database::fresh().await;
    let (vendor, login) = (Receiver::start().await, Receiver::start().await);
    let_fail_first(&login);
    // Vendors say what they like; the first token is refused.
    let is_refused = AtomicBool::new(false);
    vendor.answer_with(move |request| {
        let is_first_token = request.target() == "/oauth2" && !is_refused.swap(true, SeqCst);
        Answer::status(if is_first_token { 401 } else { 200 }).body(CANARY)
    });
    let server = Server::start_with(&database, "all", &[("POSTRIDER_LOG", "trace")]).await;
    let publisher = server.publisher().await;
    employ(&publisher, &vendor, &login).await;
    publisher.publish(r#"{"order":1}"#).await;
    let read = everything_read(&publisher).await;

    let head = format!("host: x\r\nconnection: close\r\nauthorization: Bearer {METRICS_TOKEN}\r\n\r\n");
    let metrics = send_raw(server.address, format!("GET /metrics HTTP/1.1\r\n{head}").as_bytes()).await;
    for expected in [
        "postrider_token_requests_total{outcome=\"granted\"} 2",
        "postrider_token_requests_total{outcome=\"failed\"} 2",
    ] {
        assert!(metrics.contains(expected), "{metrics}");
    }
    let pair = BASE64.encode(format!("{CANARY}:{CANARY}"));
    for (path, header, value) in [
        ("/bearer", "authorization", format!("Bearer {CANARY}")),
        ("/basic", "authorization", format!("Basic {pair}")),
        ("/header", "x-key", CANARY.to_owned()),
        ("/oauth2", "authorization", format!("Bearer token-{CANARY}")),
    ] {
        let requests = vendor.requests();
        let request = requests.iter().find(|request| request.target() == path).expect(path);
        assert_eq!(request.header(header), Some(&*value), "{path}: the mark went the whole way");
    }
    let attempts = read.iter().find(|text| text.contains("credential_unavailable")).expect("attempts");
    assert!(attempts.contains("no access token: the token endpoint answered 400"), "{attempts}");

    server.program.terminate();
    let ended = server.program.ended().await;
    assert!(ended.stdout.contains("an access token could not be fetched"), "{}", ended.stdout);
    for mark in [CANARY.to_owned(), hex_of(CANARY), pair] {
        for text in [&ended.stdout, &ended.stderr, &metrics].into_iter().chain(&read) {
            assert_eq!(text.lines().find(|line| line.contains(&mark)), None, "{mark}");
        }
        assert_eq!(rows_with(&database, &mark).await, Vec::<String>::new(), "{mark}");
    }
}

fn hex_of(text: &str) -> String {
    text.bytes().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}
