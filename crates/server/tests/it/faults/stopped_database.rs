//! PostgreSQL ends at once in the middle of work, as in a crash, and comes back: whoever heard `202` gets a delivery.

use postrider_embedded::Shutdown;
use postrider_testkit::{postgres::Database, receiver::Receiver};

use super::{
    load::Load,
    scene::{OVER, until, until_nothing_is_open},
};
use crate::server::Server;

#[tokio::test]
async fn an_immediate_stop_of_the_database_loses_nothing_that_was_accepted() {
    let (mut cluster, database) = Database::own_cluster().await;
    let receiver = Receiver::start().await;
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let load = Load::start(&publisher, &[server.address], 16);
    for round in 1..=2 {
        let before = load.counts();
        load.until("work goes on", |counts| counts.accepted >= before.accepted + 200).await;
        cluster.halt(Shutdown::Immediate).await.unwrap();
        load.until("publishers are refused", |counts| counts.refused >= before.refused + 32).await;
        assert_eq!(server.get("/health/live").await.status, 200, "in round {round}");
        assert_eq!(server.get("/health/ready").await.status, 503, "in round {round}");
        cluster.resume().await.unwrap();
    }
    let before = load.counts().accepted;
    load.until("work goes on by itself", |counts| counts.accepted >= before + 200).await;
    until("the process is ready", async || server.get("/health/ready").await.status == 200).await;
    assert_eq!(load.counts().unheard, 0, "each publisher was answered");

    let ledger = load.stop().await;
    until_nothing_is_open(database.pool()).await;
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert!(report.events >= 600 && report.dead_lettered == 0, "{report:?}");
}
