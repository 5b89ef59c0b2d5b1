//! A process dies between the rows of a fan-out: all of an event is stored, or nothing.

use postrider_testkit::{ledger::Ledger, postgres::Database, receiver::Receiver};

use super::{
    load::{promised, publish},
    scene::{OVER, count, endpoint, until_nothing_is_open},
};
use crate::server::Server;

const FAN_OUT: usize = 5;
const DAY_SECONDS: u32 = 86_400;

/// Kills the accepting process at a point; says how many events, keys and deliveries it left.
async fn check(point: &str, left: i64, repeat_is_new: bool) {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    // Another process delivers, so that nobody has to be declared dead first.
    let dying = Server::start_with(&database, "api", &[("POSTRIDER_FAILPOINT", point)]).await;
    let publisher = dying.publisher().await;
    for name in ["one", "two", "three", "four", "five"] {
        endpoint(&publisher, name, &receiver.url(&format!("/{name}")), DAY_SECONDS).await;
    }
    let [_, token] = publisher.tokens();
    publish(dying.address, token, "order-1", b"[1]").await.expect_err("the process died");
    assert_eq!(dying.program.ended().await.code, None, "it was killed");
    let deliveries = left * i64::try_from(FAN_OUT).unwrap();
    for (table, expected) in [
        ("SELECT count(*) FROM postrider.events", left),
        ("SELECT count(*) FROM postrider.idempotency_keys", left),
        ("SELECT count(*) FROM postrider.delivery_queue", deliveries),
    ] {
        assert_eq!(count(database.pool(), table).await, expected, "{point}: {table}");
    }

    let server = Server::start(&database, "all").await;
    let answer = publish(server.address, token, "order-1", b"[1]").await.unwrap();
    assert_eq!(answer.status, if repeat_is_new { 202 } else { 200 }, "{point}: {answer:?}");
    let ledger = Ledger { accepted: vec![promised(&answer, "order-1", b"[1]")], ..Ledger::default() };
    assert_eq!(ledger.accepted[0].deliveries, u32::try_from(FAN_OUT).unwrap());
    receiver.wait_for(FAN_OUT).await;
    until_nothing_is_open(database.pool()).await;
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!((report.events, report.delivered, report.repeated_requests), (1, FAN_OUT, 0));
}

#[tokio::test]
async fn killed_before_the_commit_nothing_of_the_event_is_stored() {
    check("ingest_written:kill:0", 0, true).await;
}

#[tokio::test]
async fn killed_after_the_commit_all_of_it_is_stored_and_the_key_finds_it() {
    check("ingest_committed:kill:0", 1, false).await;
}
