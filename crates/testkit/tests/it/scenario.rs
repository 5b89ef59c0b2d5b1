//! Scenarios make rows as the product does, and the ledger checker reads them.

use std::time::Duration;

use postrider_testkit::{
    ledger::{Accepted, Expectation, Ledger},
    postgres::Database,
    scenario::Scenario,
};

const RUNNING: Expectation = Expectation { poll: Duration::from_secs(1), everything_ended: false };

#[tokio::test]
async fn a_published_event_waits_for_each_subscriber() {
    let database = Database::fresh().await;
    let acme = Scenario::new(database.pool().clone()).tenant("acme").await;
    let orders = acme.application("orders").await;
    let warehouse = acme.endpoint("warehouse", "http://127.0.0.1:9/").max_in_flight(1).create().await;
    let billing = acme.endpoint("billing", "http://127.0.0.1:9/").create().await;
    orders.sends(&["order.*"], &warehouse).await;
    orders.sends(&["order.paid", "order.*"], &billing).await;
    orders.sends(&["order.paid"], &billing).await;

    let published = orders.publish("order.paid", "[1]").await;
    assert_eq!(published.deliveries.len(), 2, "an endpoint gets an event once");
    assert!(orders.publish("user.created", "{}").await.deliveries.is_empty());

    let accepted =
        Accepted { event_id: published.event_id, key: None, deliveries: 2, body: b"[1]".as_slice().into() };
    let report =
        Ledger { accepted: vec![accepted], ..Ledger::default() }.check(database.pool(), RUNNING).await;
    assert_eq!((report.events, report.open, report.attempts), (1, 2, 0));
}
