//! A server process on a database of the test's own, and the resources a publisher needs.

use std::net::SocketAddr;

use postrider_core::id::EventId;
use postrider_testkit::{ledger::Accepted, postgres::Database};
use serde_json::{Value, json};

use crate::{
    api::{Answer, call, exchange},
    program::Program,
};

pub(crate) const BOOTSTRAP_TOKEN: &str = "bootstrap-0123456789abcdef0123456789abcdef";
pub(crate) const METRICS_TOKEN: &str = "metrics-0123456789abcdef0123456789abcdef";
pub(crate) const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Starts `postrider serve` on a free port; later variables win.
pub(crate) fn launch(database: &Database, role: &str, more: &[(&str, &str)]) -> Program {
    let is_elsewhere = more.iter().any(|(variable, _)| *variable == "DATABASE_URL");
    let mut place = database.variables();
    place.retain(|(variable, _)| !is_elsewhere || *variable == "POSTRIDER_RABBITMQ_URL");
    let variables = [
        ("POSTRIDER_ENCRYPTION_KEY", KEY),
        ("POSTRIDER_TOKEN_PEPPER", KEY),
        ("POSTRIDER_BOOTSTRAP_TOKEN", BOOTSTRAP_TOKEN),
        ("POSTRIDER_METRICS_TOKEN", METRICS_TOKEN),
        ("POSTRIDER_ALLOW_LOOPBACK_ENDPOINTS", "1"),
    ];
    let variables = [&place, variables.as_slice(), more].concat();
    Program::start(&["serve", "--role", role, "--listen", "127.0.0.1:0"], &variables)
}

/// `postrider serve` on a free port, listening.
pub(crate) struct Server {
    pub(crate) program: Program,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) async fn start(database: &Database, role: &str) -> Self {
        Self::start_with(database, role, &[]).await
    }

    pub(crate) async fn start_with(database: &Database, role: &str, more: &[(&str, &str)]) -> Self {
        let mut program = launch(database, role, more);
        let line = program.line(|line| line.contains("\"listening\"")).await;
        let logged: Value = serde_json::from_str(&line).expect("log lines are JSON");
        assert_eq!(logged["role"], role, "as the command line writes it: {line}");
        let address = logged["address"].as_str().unwrap().parse().unwrap();
        Self { program, address }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        call(self.address, "GET", path, "", "").await
    }

    /// Creates the tenant `acme` with the application `orders`.
    pub(crate) async fn publisher(&self) -> Publisher {
        let tenant = json!({ "id": "acme", "name": "Acme" }).to_string();
        let answer = call(self.address, "POST", "/api/admin/tenants", BOOTSTRAP_TOKEN, &tenant).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        self.publisher_with(answer.text("ownerToken")).await
    }

    /// Creates the application `orders` of the tenant `acme`.
    pub(crate) async fn publisher_with(&self, owner_token: String) -> Publisher {
        let mut publisher = Publisher { address: self.address, owner_token, publish_token: String::new() };
        let answer = publisher.manage("POST", "/applications", json!({ "id": "orders" }), 201).await;
        publisher.publish_token = answer.text("publishToken");
        publisher
    }
}

pub(crate) const EVENTS: &str = "/api/tenants/acme/applications/orders/events/order.created";

/// A 2xx answer as the publisher's ledger keeps it.
pub(crate) fn accepted(answer: &Answer, body: &[u8]) -> Accepted {
    let event_id: EventId = answer.text("id").parse().unwrap();
    let deliveries = u32::try_from(answer.body["deliveries"].as_u64().unwrap()).unwrap();
    Accepted { event_id, key: None, deliveries, body: body.to_vec().into() }
}

/// An accepted event of a batch as the publisher's ledger keeps it.
pub(crate) fn accepted_item(result: &Value, body: &str) -> Accepted {
    assert_eq!(result["status"], 202, "{result}");
    accepted(&Answer { status: 202, body: result.clone() }, body.as_bytes())
}

/// The tenant `acme` and its application `orders`.
#[derive(Debug, Clone)]
pub(crate) struct Publisher {
    pub(crate) address: SocketAddr,
    owner_token: String,
    publish_token: String,
}

impl Publisher {
    /// What opens the tenant and its application.
    pub(crate) fn tokens(&self) -> [&str; 2] {
        [&self.owner_token, &self.publish_token]
    }

    /// A call of the owner's below `/api/tenants/acme`, which must be answered as expected.
    pub(crate) async fn manage(&self, method: &str, path: &str, body: Value, expected: u16) -> Answer {
        let path = format!("/api/tenants/acme{path}");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = call(self.address, method, &path, &self.owner_token, &body).await;
        assert_eq!(answer.status, expected, "{method} {path}: {answer:?}");
        answer
    }

    /// Creates the endpoint `warehouse` for all events of `orders`, tried again at once; returns its secret.
    pub(crate) async fn deliver_to(&self, url: &str) -> String {
        let endpoint =
            json!({ "id": "warehouse", "url": url, "retry": { "initialDelayMs": 1, "maxDelayMs": 1 } });
        let secret = self.manage("POST", "/endpoints", endpoint, 201).await.text("signingSecret");
        let subscription = json!({
            "id": "all", "applicationId": "orders", "endpointId": "warehouse", "eventTypes": ["*"],
        });
        self.manage("POST", "/subscriptions", subscription, 201).await;
        secret
    }

    /// Publishes an event, which must be accepted.
    pub(crate) async fn publish(&self, body: &str) -> Accepted {
        let answer = self.try_publish(body).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        accepted(&answer, body.as_bytes())
    }

    /// Publishes an event, whatever comes of it.
    pub(crate) async fn try_publish(&self, body: impl AsRef<[u8]>) -> Answer {
        call(self.address, "POST", EVENTS, &self.publish_token, body).await
    }

    /// Publishes events together, and tells what became of each.
    pub(crate) async fn publish_batch(&self, bodies: &[String]) -> Vec<Value> {
        let event = |body: &String| format!(r#"{{"type":"order.created","data":{body}}}"#);
        let events: Vec<String> = bodies.iter().map(event).collect();
        let batch = format!(r#"{{"events":[{}]}}"#, events.join(","));
        let path = "/api/tenants/acme/applications/orders/events";
        let answer = call(self.address, "POST", path, &self.publish_token, batch).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["results"].as_array().unwrap().clone()
    }

    /// Publishes an event under a key, whatever comes of it.
    pub(crate) async fn try_publish_under(&self, key: &str, body: &str) -> Answer {
        let token = &self.publish_token;
        let head =
            format!("POST {EVENTS} HTTP/1.1\r\nauthorization: Bearer {token}\r\nidempotency-key: {key}\r\n");
        exchange(self.address, &head, body.as_bytes()).await
    }

    /// The same publisher at another process.
    pub(crate) fn at(&self, server: &Server) -> Self {
        Self { address: server.address, ..self.clone() }
    }

    /// Asks until the event's only delivery is in a state. Each answer takes the way of a person's request, so this asks
    /// no faster than the server answers.
    pub(crate) async fn wait_for_delivery(&self, event: &Accepted, state: &str) -> Value {
        let path = format!("/deliveries?state={state}");
        loop {
            let answer = self.manage("GET", &path, Value::Null, 200).await;
            let event_id = event.event_id.to_string();
            let found = answer.body["data"].as_array().and_then(|deliveries| {
                deliveries.iter().find(|delivery| delivery["eventId"] == event_id.as_str())
            });
            if let Some(delivery) = found {
                return delivery.clone();
            }
        }
    }
}
