//! What a process says of its work while it works: enough to follow a delivery, and no secret at any level.

use postrider_testkit::{
    postgres::Database,
    receiver::{Answer, Receiver},
};
use serde_json::{Value, json};

use crate::{
    api::send_raw,
    server::{BOOTSTRAP_TOKEN, KEY, METRICS_TOKEN, Publisher, Server},
};

/// Stands in every place that nobody but sender and receiver may see.
const CANARY: &str = "canary-5d1f0b";

/// A tenant whose endpoint has the mark in its URL's path and headers, and whose event has it in its body.
async fn mark(publisher: &Publisher, receiver: &Receiver) -> String {
    let secret = publisher.deliver_to(&receiver.url(&format!("/hooks/{CANARY}"))).await;
    let headers = json!({ "headers": { "authorization": format!("Bearer {CANARY}"), "x-key": CANARY } });
    publisher.manage("PATCH", "/endpoints/warehouse", headers, 200).await;
    secret
}

/// The first line about an attempt, which must be of this tenant's only delivery.
async fn attempt(server: &mut Server, delivery_id: &Value) -> Value {
    let line = server.program.line(|line| line.contains("attempt ended")).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(&line["delivery_id"], delivery_id, "{line}");
    assert!(line["tenant_id"].as_str().is_some_and(|id| id.starts_with("ten_")), "{line}");
    assert!(line["endpoint_id"].is_string() && line["latency_ms"].is_u64(), "{line}");
    line
}

#[tokio::test]
async fn a_delivery_can_be_followed_and_no_secret_read_at_any_level() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    // What receivers say is theirs, too; the third breaks off in the middle of its answer.
    let angry = format!("HTTP/1.1 500 {CANARY}\r\nx-said: {CANARY}\r\ncontent-length: 13\r\n\r\n{CANARY}");
    receiver.queue([Answer::raw(angry), Answer::raw(format!("{CANARY}\r\n\r\n")), Answer::ok()]);
    let mut server = Server::start_with(&database, "all", &[("POSTRIDER_LOG", "trace")]).await;
    let publisher = server.publisher().await;
    let signing_secret = mark(&publisher, &receiver).await;

    let event = publisher.publish(&json!({ "card": CANARY }).to_string()).await;
    publisher.try_publish(format!("{{{CANARY}")).await;
    publisher.try_publish_under(CANARY, "{}{").await;
    publisher.manage("GET", &format!("/events?cursor={CANARY}"), Value::Null, 400).await;
    let delivery = publisher.wait_for_delivery(&event, "delivered").await;
    for (number, outcome, status, failure) in [
        (1, "scheduled", json!(500), Value::Null),
        (2, "scheduled", Value::Null, json!("bad_response")),
        (3, "delivered", json!(200), Value::Null),
    ] {
        let line = attempt(&mut server, &delivery["id"]).await;
        assert_eq!((&line["attempt"], &line["outcome"]), (&json!(number), &json!(outcome)), "{line}");
        assert_eq!(line["status"], status, "{line}");
        let kind = line["failure"].as_str().and_then(|text| text.split(':').next());
        assert_eq!(kind, failure.as_str(), "{line}");
    }

    let head = format!("host: x\r\nconnection: close\r\nauthorization: Bearer {METRICS_TOKEN}\r\n\r\n");
    let metrics = send_raw(server.address, format!("GET /metrics HTTP/1.1\r\n{head}").as_bytes()).await;
    assert!(metrics.contains("postrider_attempts_total{outcome=\"delivered\"} 1"), "{metrics}");
    server.program.terminate();
    let ended = server.program.ended().await;

    let requests = receiver.requests();
    assert!(requests.iter().all(|request| request.target().contains(CANARY)), "the mark went the whole way");
    let tokens = publisher.tokens();
    let signatures = requests.iter().filter_map(|request| request.header("webhook-signature"));
    let secrets = [CANARY, BOOTSTRAP_TOKEN, METRICS_TOKEN, KEY, signing_secret.as_str()];
    for secret in secrets.into_iter().chain(tokens).chain(signatures) {
        for (place, text) in [("stdout", &ended.stdout), ("stderr", &ended.stderr), ("the metrics", &metrics)]
        {
            let leak = text.lines().find(|line| line.contains(secret));
            assert_eq!(leak, None, "{secret} stands in {place}");
        }
    }
    let tenant = metrics.lines().find(|line| line.contains("acme") || line.contains("ten_"));
    assert_eq!(tenant, None, "the metrics name no tenant");
}
