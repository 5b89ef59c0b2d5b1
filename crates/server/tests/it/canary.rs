//! A mark in every secret there is, through everything that a process does with it: no log line at any level, metric,
//! error, read or plain column shows one.

use std::fs;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use postrider_testkit::{
    postgres::Database,
    receiver::{Answer, Receiver},
};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use crate::{
    api::{call, exchange, send_raw},
    program::run,
    server::{Publisher, Server},
};

const CANARY: &str = "canary-e40b7d";
const BOOTSTRAP_TOKEN: &str = "canary-e40b7d-bootstrap-0123456789abcdef";
const METRICS_TOKEN: &str = "canary-e40b7d-metrics-0123456789abcdef";
const JWT_SECRET: &str = "canary-e40b7d-sessions-0123456789abcdef";
const PEPPER: &str = "canary-e40b7d-pepper-0123456789abcdef";
/// Hexadecimal, so the mark in it is its own.
const ENCRYPTION_KEY: &str = "e40b7dcafe23456789abcdef0123456789abcdef0123456789abcdefe40b7dca";
const PASSWORD: &str = "canary-e40b7d battery";

/// What stands for what, where somebody may look.
struct Marked {
    /// The ids that the paths of reads need.
    ids: Vec<(&'static str, String)>,
    /// What the program itself made, besides the mark.
    secrets: Vec<String>,
    seen: Vec<String>,
}

impl Marked {
    /// A management call whose answer may show what it makes this once; later answers may not.
    async fn make(&mut self, owner: &Publisher, path: &str, body: Value, shown: &str) -> Value {
        let answer = owner.manage("POST", path, body, 201).await;
        if !shown.is_empty() {
            self.secrets.push(answer.text(shown));
        }
        answer.body
    }
}

async fn start(database: &Database) -> (Server, Publisher) {
    let variables = [
        ("POSTRIDER_LOG", "trace"),
        ("POSTRIDER_BOOTSTRAP_TOKEN", BOOTSTRAP_TOKEN),
        ("POSTRIDER_METRICS_TOKEN", METRICS_TOKEN),
        ("POSTRIDER_JWT_SECRET", JWT_SECRET),
        ("POSTRIDER_TOKEN_PEPPER", PEPPER),
        ("POSTRIDER_ENCRYPTION_KEY", ENCRYPTION_KEY),
    ];
    let server = Server::start_with(database, "all", &variables).await;
    let tenant = json!({ "id": "acme", "name": "Acme" }).to_string();
    let created = call(server.address, "POST", "/api/admin/tenants", BOOTSTRAP_TOKEN, &tenant).await;
    let owner = server.publisher_with(created.text("ownerToken")).await;
    (server, owner)
}

/// Makes one of everything.
async fn fill(marked: &mut Marked, server: &Server, owner: &Publisher, receiver: &Receiver) {
    let url = receiver.url("/hooks");
    marked.secrets.extend(owner.tokens().map(str::to_owned));
    let key = json!({ "id": "ci", "role": "viewer" });
    marked.make(owner, "/keys", key, "token").await;
    let user = json!({ "email": "ada@example.com", "password": PASSWORD, "role": "owner" });
    let user = marked.make(owner, "/users", user, "").await;
    marked.ids.push(("{user}", user["id"].as_str().unwrap().to_owned()));
    let login = json!({ "email": "ada@example.com", "password": PASSWORD }).to_string();
    let session = call(server.address, "POST", "/api/auth/login", "", &login).await;
    marked.secrets.push(session.text("token"));
    let wrong = json!({ "email": "ada@example.com", "password": CANARY }).to_string();
    let refused = call(server.address, "POST", "/api/auth/login", "", &wrong).await;
    marked.seen.push(refused.body.to_string());

    marked.make(owner, "/credentials", json!({ "id": "vendor", "bearer": { "token": CANARY } }), "").await;
    let retry = json!({ "initialDelayMs": 1, "maxDelayMs": 1 });
    let endpoint = json!({
        "id": "warehouse", "url": url, "headers": { "x-key": CANARY }, "credential": "vendor", "retry": retry,
    });
    marked.make(owner, "/endpoints", endpoint, "signingSecret").await;
    let rotated = owner.manage("POST", "/endpoints/warehouse/rotate-secret", json!({}), 200).await;
    marked.secrets.push(rotated.text("signingSecret"));
    let subscription = json!({
        "id": "all", "applicationId": "orders", "endpointId": "warehouse", "eventTypes": ["*"],
    });
    marked.make(owner, "/subscriptions", subscription, "").await;
}

/// Approves an endpoint whose URL has a marked query.
async fn approve(database: &Database, receiver: &Receiver) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("registry.yaml");
    let text = format!(
        "tenants:\n  acme:\n    endpoints:\n      sms:\n        url: {}?key={CANARY}\n        allowQuery: true\n        \
         headers: {{x-key: {CANARY}}}\n        applications: [orders]\n",
        receiver.url("/sms")
    );
    fs::write(&file, text).unwrap();
    let variables = [
        ("DATABASE_URL", database.url()),
        ("POSTRIDER_ENCRYPTION_KEY", ENCRYPTION_KEY),
        ("POSTRIDER_ALLOW_LOOPBACK_ENDPOINTS", "1"),
    ];
    let applied = run(&["apply", file.to_str().unwrap()], &variables).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    format!("{}{}", applied.stdout, applied.stderr)
}

/// Sends an event that fails, dies and is replayed, a notification, and what is refused.
async fn work(marked: &mut Marked, server: &Server, owner: &Publisher, receiver: &Receiver) {
    let angry = format!("HTTP/1.1 500 {CANARY}\r\nx-said: {CANARY}\r\ncontent-length: 13\r\n\r\n{CANARY}");
    receiver.queue([Answer::raw(angry), Answer::raw(format!("{CANARY}\r\n\r\n")), Answer::status(400)]);
    let event = owner.publish(&json!({ "card": CANARY }).to_string()).await;
    let dead = owner.wait_for_delivery(&event, "dead_lettered").await;
    marked.ids.push(("{event}", event.event_id.to_string()));
    marked.ids.push(("{delivery}", dead["id"].as_str().unwrap().to_owned()));
    let replay = marked.make(owner, "/replays", json!({ "filter": {} }), "").await;
    let id = replay["id"].as_str().unwrap();
    owner.manage("POST", &format!("/replays/{id}/execute"), Value::Null, 202).await;
    marked.ids.push(("{replay}", id.to_owned()));
    owner.wait_for_delivery(&event, "delivered").await;

    let [_, publish] = owner.tokens();
    let path = "/api/tenants/acme/applications/orders/notifications/sms";
    let head = format!("POST {path} HTTP/1.1\r\nauthorization: Bearer {publish}\r\n");
    let notified = exchange(server.address, &head, CANARY.as_bytes()).await;
    assert_eq!(notified.status, 202, "{notified:?}");
    receiver.wait_for(5).await;

    for (method, path, body) in [
        ("POST", "/endpoints", json!({ "id": "x", "url": format!("https://{CANARY}:{CANARY}@x.example/") })),
        (
            "POST",
            "/endpoints",
            json!({ "id": "x", "url": "https://x.example/", "headers": { "host": CANARY } }),
        ),
        ("POST", "/credentials", json!({ "id": "x", "bearer": { "token": [CANARY] } })),
        ("POST", "/users", json!({ "email": "b@example.com", "password": [CANARY], "role": "owner" })),
    ] {
        marked.seen.push(owner.manage(method, path, body, 422).await.body.to_string());
    }
    let [owner_token, _] = owner.tokens();
    for token in [&format!("{owner_token}x"), &format!("{BOOTSTRAP_TOKEN}x"), CANARY] {
        let refused = call(server.address, "GET", "/api/tenants/acme/events", token, "").await;
        assert_eq!(refused.status, 401, "{refused:?}");
        marked.seen.push(refused.body.to_string());
    }
}

/// Every read of the document, as the owner.
async fn read_everything(marked: &mut Marked, server: &Server, owner: &Publisher) {
    let document = call(server.address, "GET", "/openapi.json", "", "").await.body;
    let names = [
        ("{application}", "orders"),
        ("{endpoint}", "warehouse"),
        ("{subscription}", "all"),
        ("{key}", "ci"),
        ("{credential}", "vendor"),
    ];
    let mut reads = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let Some(path) = path.strip_prefix("/api/tenants/{tenant}") else { continue };
        if item.get("get").is_none() {
            continue;
        }
        let path = names.iter().fold(path.to_owned(), |path, (name, value)| path.replace(name, value));
        let path = marked.ids.iter().fold(path, |path, (name, value)| path.replace(name, value));
        assert!(!path.contains('{'), "say what stands for the parameter of {path}");
        marked.seen.push(owner.manage("GET", &path, Value::Null, 200).await.body.to_string());
        reads += 1;
    }
    assert!(reads >= 18, "{reads}");
    let tenant = call(server.address, "GET", "/api/admin/tenants/acme", BOOTSTRAP_TOKEN, "").await;
    assert_eq!(tenant.status, 200, "{tenant:?}");
    marked.seen.push(tenant.body.to_string());
    let head = format!("host: x\r\nconnection: close\r\nauthorization: Bearer {METRICS_TOKEN}\r\n\r\n");
    marked.seen.push(send_raw(server.address, format!("GET /metrics HTTP/1.1\r\n{head}").as_bytes()).await);
}

/// Every row as text, in which bytes stand in hexadecimal; bodies are the one thing stored as it came.
async fn rows(database: &Database) -> Vec<(String, String)> {
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT tablename::text FROM pg_tables WHERE schemaname = 'postrider'")
            .fetch_all(database.pool())
            .await
            .unwrap();
    let mut found = Vec::new();
    for table in tables {
        let query = format!("SELECT (to_jsonb(t) - 'body')::text FROM postrider.{table} AS t");
        let rows: Vec<String> =
            sqlx::query_scalar(AssertSqlSafe(query)).fetch_all(database.pool()).await.unwrap();
        found.extend(rows.into_iter().map(|row| (table.clone(), row)));
    }
    assert!(found.len() > 30, "{}", found.len());
    found
}

#[tokio::test]
async fn a_mark_in_every_secret_is_seen_by_nobody() {
    let database = Database::empty().await;
    let receiver = Receiver::start().await;
    let mut marked = Marked { ids: Vec::new(), secrets: Vec::new(), seen: Vec::new() };
    let (server, owner) = start(&database).await;
    fill(&mut marked, &server, &owner, &receiver).await;
    marked.seen.push(approve(&database, &receiver).await);
    work(&mut marked, &server, &owner, &receiver).await;
    read_everything(&mut marked, &server, &owner).await;
    server.program.terminate();
    let ended = server.program.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    marked.seen.extend([ended.stdout, ended.stderr]);

    let mut needles = vec![CANARY.to_owned(), ENCRYPTION_KEY.to_owned()];
    for secret in &marked.secrets {
        needles.push(secret.clone());
        if let Some(encoded) = secret.strip_prefix("whsec_") {
            needles.extend([encoded.to_owned(), hex::encode(BASE64.decode(encoded).unwrap())]);
        }
    }
    let in_hexadecimal: Vec<String> = needles.iter().map(hex::encode).collect();
    needles.extend(in_hexadecimal);
    let rows = rows(&database).await;
    for needle in &needles {
        for text in &marked.seen {
            assert_eq!(text.lines().find(|line| line.contains(needle)), None, "{needle} is shown");
        }
        let found = rows.iter().find(|(_, row)| row.contains(needle));
        assert_eq!(found, None, "{needle} is stored so that it can be read");
    }
    let requests = receiver.requests();
    let reached = requests.iter().filter(|request| request.header("x-key") == Some(CANARY));
    assert!(reached.count() >= 5, "the mark went the whole way");
}
