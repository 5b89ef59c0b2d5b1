//! A worker stands still past its lease and then wakes with a result in its hands: the result changes nothing.

use postrider_testkit::{
    ledger::Ledger,
    postgres::Database,
    receiver::{Answer, Gate, Receiver},
};
use rustix::process::Signal;

use super::scene::{OVER, counter, outcomes, until, until_nothing_is_open};
use crate::server::Server;

#[tokio::test]
async fn what_a_worker_writes_after_its_lease_was_taken_over_changes_nothing() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    // The heir's first request is under way while the frozen one wakes, and then fails.
    let gate = Gate::default();
    receiver.queue([Answer::ok(), Answer::status(503).after(&gate)]);
    let frozen =
        Server::start_with(&database, "all", &[("POSTRIDER_FAILPOINT", "settle_gathered:stop:0")]).await;
    let publisher = frozen.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let accepted = publisher.publish("[1]").await;
    receiver.wait_for(1).await;
    until("the worker stands still", async || frozen.program.is_stopped()).await;

    let heir = Server::start(&database, "all").await;
    receiver.wait_for(2).await;
    frozen.program.signal(Signal::CONT);
    let stale = async || counter(frozen.address, "postrider_stale_results_total").await > 0;
    until("the worker that woke was told that its lease is gone", stale).await;
    assert_eq!(counter(frozen.address, "postrider_lives_lost_total").await, 1);
    gate.open();

    receiver.wait_for(3).await;
    until_nothing_is_open(database.pool()).await;
    let publisher = publisher.at(&heir);
    let delivery = publisher.wait_for_delivery(&accepted, "delivered").await;
    assert_eq!(outcomes(&publisher, &delivery).await, ["interrupted", "scheduled", "delivered"]);
    let ledger = Ledger { accepted: vec![accepted], ..Ledger::default() }.with_receiver(&receiver);
    let report = ledger.check(database.pool(), OVER).await;
    assert_eq!((report.delivered, report.interrupted_attempts, report.repeated_requests), (1, 1, 2));
}
