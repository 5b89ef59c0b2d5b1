//! Bodies arrive at the receiver byte for byte, or are refused: the cases of `cases/json-edge-bodies.json`, the whole way.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use postrider_testkit::{
    ledger::{Expectation, Ledger},
    postgres::Database,
    receiver::Receiver,
};
use serde_json::Value;

use crate::server::{Server, accepted};

const CASES: &str = include_str!("../../../../cases/json-edge-bodies.json");

fn body(case: &Value) -> Vec<u8> {
    if let Some(encoded) = case["body_base64"].as_str() {
        return BASE64.decode(encoded).unwrap();
    }
    let generate = &case["generate"];
    let text = |name: &str| generate[name].as_str().unwrap_or_default();
    let times = usize::try_from(generate["times"].as_u64().unwrap()).unwrap();
    match text("kind") {
        "nested" => [text("open").repeat(times), text("inner").to_owned(), text("close").repeat(times)]
            .concat()
            .into(),
        "repeat" => text("text").repeat(times).into(),
        other => panic!("unknown kind {other}"),
    }
}

#[tokio::test]
async fn bodies_arrive_byte_for_byte_or_are_refused() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let cases: Value = serde_json::from_str(CASES).unwrap();
    let mut ledger = Ledger::default();
    for case in cases["bodies"].as_array().unwrap() {
        let (id, expected) = (case["id"].as_str().unwrap(), case["expect"].as_str().unwrap());
        // A body far over the limit is refused while it is still being sent, which this plain client cannot read.
        if expected == "reject_413" {
            continue;
        }
        let body = body(case);
        let answer = publisher.try_publish(&body).await;
        match (expected, answer.status) {
            ("accept_exact" | "accept_exact_or_4xx" | "either", 202) => {
                ledger.accepted.push(accepted(&answer, &body));
            }
            ("reject_400" | "accept_exact_or_4xx" | "either", 400..500) => {}
            _ => panic!("{id}: {answer:?}"),
        }
    }
    assert!(ledger.accepted.len() >= 10, "only {} are accepted", ledger.accepted.len());
    receiver.wait_for(ledger.accepted.len()).await;
    let last = ledger.accepted.last().unwrap().clone();
    publisher.wait_for_delivery(&last, "delivered").await;
    let running = Expectation { poll: Duration::from_secs(2), everything_ended: false };
    // The checker compares each body three times: as published, as stored, as received.
    ledger.with_receiver(&receiver).check(database.pool(), running).await;
}
