//! The connection breaks while an event is being stored: whether it was stored is unknown, and the publisher is told so.
//! A repeat under the same key settles it.

use postrider_testkit::{
    ledger::Ledger,
    postgres::Database,
    proxy::{Fault, Proxy},
    receiver::Receiver,
};

use super::{
    load::{promised, publish},
    scene::{OVER, count, until, until_nothing_is_open},
};
use crate::server::Server;

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_unknown_and_its_key_settles_it() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let proxy = Proxy::before(database.url()).await;
    let url = proxy.url(database.url());
    let accepting = Server::start_with(&database, "api", &[("DATABASE_URL", &url)]).await;
    let publisher = accepting.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let [_, token] = publisher.tokens();
    // Opens the lane, which must trust its connection when the fault strikes.
    let first = publish(accepting.address, token, "first", b"[0]").await.unwrap();
    let mut ledger = Ledger { accepted: vec![promised(&first, "first", b"[0]")], ..Ledger::default() };
    // With messages to a broker it is two in a transaction, which ends uncommitted where the first has no answer.
    let is_one_statement = database.broker_url().is_none();
    for (number, (key, fault, stored)) in
        [("unheard", Fault::CutBefore, false), ("unanswered", Fault::SwallowReply, is_one_statement)]
            .iter()
            .enumerate()
    {
        let before = count(database.pool(), "SELECT count(*) FROM postrider.events").await;
        proxy.set("INSERT INTO postrider.events", *fault);
        let unknown = publish(accepting.address, token, key, b"[1]").await.unwrap();
        proxy.happened(number + 1).await;
        assert_eq!(unknown.status, 503, "{key}: {unknown:?}");
        assert!(unknown.text("detail").contains("unknown"), "{key}: {unknown:?}");
        assert_eq!(
            count(database.pool(), "SELECT count(*) FROM postrider.events").await,
            before + i64::from(*stored),
            "{key}"
        );
        let repeated = publish(accepting.address, token, key, b"[1]").await.unwrap();
        assert_eq!(repeated.status, if *stored { 200 } else { 202 }, "{key}: {repeated:?}");
        ledger.accepted.push(promised(&repeated, key, b"[1]"));
    }

    let _delivering = Server::start(&database, "worker").await;
    receiver.wait_for(3).await;
    until_nothing_is_open(database.pool()).await;
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!((report.events, report.delivered, report.repeated_requests), (3, 3, 0));
}

/// A process whose every connection is cut again and again is slower and loses nothing.
#[tokio::test]
async fn cut_connections_are_opened_again() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let proxy = Proxy::before(database.url()).await;
    let url = proxy.url(database.url());
    let server = Server::start_with(&database, "all", &[("DATABASE_URL", &url)]).await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let load = super::load::Load::start(&publisher, &[server.address], 4);
    for _ in 0..5 {
        let before = load.counts().accepted;
        load.until("work goes on", |counts| counts.accepted >= before + 20).await;
        proxy.cut_all();
    }
    let before = load.counts().accepted;
    load.until("work goes on", |counts| counts.accepted >= before + 20).await;
    let ledger = load.stop().await;
    until("the process is ready", async || server.get("/health/ready").await.status == 200).await;
    until_nothing_is_open(database.pool()).await;
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!(report.dead_lettered, 0, "{report:?}");
}
