//! SIGTERM in the middle of work: what is in hand is finished, the rest is left to others, nothing is sent twice.

use postrider_testkit::{
    postgres::Database,
    receiver::{Answer, Receiver},
};

use super::{
    load::Load,
    scene::{OVER, until_nothing_is_open},
};
use crate::server::Server;

#[tokio::test]
async fn a_drain_under_load_interrupts_nothing_and_repeats_nothing() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    // One in three is tried again, so that all kinds of rows are open when the signal comes.
    receiver.answer_with(|request| {
        let is_first = request.header("postrider-attempt") == Some("1");
        if is_first && request.webhook_id().ends_with(['0', '4', '8', 'c']) {
            Answer::status(503)
        } else {
            Answer::ok()
        }
    });
    let (leaving, staying) = tokio::join!(Server::start(&database, "all"), Server::start(&database, "all"));
    let publisher = leaving.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let load = Load::start(&publisher, &[leaving.address, staying.address], 8);
    load.until("200 events were accepted", |counts| counts.accepted >= 200).await;

    leaving.program.terminate();
    let ended = leaving.program.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let before = load.counts().accepted;
    load.until("the other process goes on", |counts| counts.accepted >= before + 100).await;
    let ledger = load.stop().await;
    until_nothing_is_open(database.pool()).await;
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    let retried = report.attempts - report.delivered;
    assert_eq!((report.interrupted_attempts, report.dead_lettered), (0, 0));
    assert_eq!(report.repeated_requests, retried, "only what failed was sent again");
}
