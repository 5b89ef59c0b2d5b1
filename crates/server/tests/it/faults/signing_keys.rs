//! An endpoint's signing secret is replaced under load: a receiver that holds the one before accepts everything, and one
//! that holds the new one accepts whatever was not on its way already.

use postrider_core::signature::{self, VerifyingKey};
use postrider_testkit::{
    postgres::Database,
    receiver::{Answer, Gate, Receiver, Request},
};
use serde_json::json;

use super::{
    load::Load,
    scene::{OVER, until, until_nothing_is_open},
};
use crate::server::Server;

/// Published before the rotation, and tried again after it.
const HELD: &str = "[\"held\"]";
/// What the events begin with that are published after it.
const AFTER: &str = "[\"after\",";

/// Whether a receiver that holds this secret alone accepts a request.
fn accepts(secret: &str, request: &Request) -> bool {
    let headers = request
        .headers()
        .into_iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect();
    let timestamp = request.header("webhook-timestamp").unwrap().parse().unwrap();
    let key: VerifyingKey = secret.parse().unwrap();
    signature::verify(&headers, &request.body, timestamp, &[key]).is_ok()
}

fn is_first_try(request: &Request) -> bool {
    request.header("postrider-attempt") == Some("1")
}

#[tokio::test]
async fn under_load_both_secrets_verify_while_the_overlap_of_a_rotation_runs() {
    let database = Database::fresh().await;
    let (receiver, gate) = (Receiver::start().await, Gate::default());
    let held = gate.clone();
    // One in four is tried again, so that deliveries of every age are under way at any time.
    receiver.answer_with(move |request| {
        let is_unlucky = request.webhook_id().ends_with(['0', '4', '8', 'c']);
        match is_first_try(request) {
            true if &*request.body == HELD.as_bytes() => Answer::status(503).after(&held),
            true if is_unlucky => Answer::status(503),
            true | false => Answer::ok(),
        }
    });
    let servers = tokio::join!(Server::start(&database, "all"), Server::start(&database, "all"));
    let publisher = servers.0.publisher().await;
    let before = publisher.deliver_to(&receiver.url("/")).await;
    let load = Load::start(&publisher, &[servers.0.address, servers.1.address], 6);
    load.until("a hundred accepted", |counts| counts.accepted >= 100).await;
    let mut accepted = vec![publisher.publish(HELD).await];
    let is_held = |request: &Request| &*request.body == HELD.as_bytes();
    until("it is tried", async || receiver.requests().iter().any(is_held)).await;

    let rotation = json!({ "overlapSeconds": 3_600 });
    let rotated = publisher.manage("POST", "/endpoints/warehouse/rotate-secret", rotation, 200).await;
    let after = rotated.text("signingSecret");
    gate.open();
    for number in 0..50 {
        let server = if number % 2 == 0 { &servers.0 } else { &servers.1 };
        accepted.push(publisher.at(server).publish(&format!("{AFTER}{number}]")).await);
    }
    let mut ledger = load.stop().await;
    ledger.accepted.append(&mut accepted);
    until_nothing_is_open(database.pool()).await;

    let requests = receiver.requests();
    let (mut under_both, mut under_one) = (0, 0);
    for request in &requests {
        assert!(accepts(&before, request), "whoever has not changed yet loses nothing: {request:?}");
        let is_later =
            request.body.starts_with(AFTER.as_bytes()) || is_held(request) && !is_first_try(request);
        let is_under_both = accepts(&after, request);
        assert!(is_under_both || !is_later, "whoever has changed accepts what is signed since: {request:?}");
        under_both += usize::from(is_later);
        under_one += usize::from(!is_under_both);
    }
    assert!(under_both >= 51 && under_one >= 100, "{under_both} under both, {under_one} under one");
    let promised = ledger.promised_deliveries();
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!((report.delivered, report.dead_lettered), (promised, 0));
}
