//! All processes of an installation are replaced, one after the other, while events are published.

use postrider_testkit::{postgres::Database, receiver::Receiver};
use sqlx::PgPool;

use super::{
    load::Load,
    scene::{OVER, counter, until, until_nothing_is_open},
};
use crate::server::Server;

/// What is published and accepted between two replacements.
const BETWEEN: usize = 50;

/// The roles of the processes whose hearts beat, or that have taken their leave.
async fn registered(pool: &PgPool, have_left: bool) -> Vec<String> {
    let query =
        "SELECT role FROM postrider.instances WHERE (declared_dead_at IS NOT NULL) = $1 ORDER BY role";
    sqlx::query_scalar(query).bind(have_left).fetch_all(pool).await.unwrap()
}

/// Waits until more has been accepted.
async fn goes_on(load: &Load) {
    let before = load.counts().accepted;
    load.until("more is accepted", |counts| counts.accepted >= before + BETWEEN).await;
}

/// Ends a process in order.
async fn end(leaving: Server) {
    leaving.program.terminate();
    let ended = leaving.program.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// A process registers with its first beat, soon after it listens.
async fn until_all_are_registered(pool: &PgPool) {
    until("all are registered", async || registered(pool, false).await == ["api", "api", "worker", "worker"])
        .await;
}

#[tokio::test]
async fn a_rolling_restart_loses_nothing_and_refuses_nobody_who_tries_another_process() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let start = async |role| Server::start(&database, role).await;
    let mut apis = vec![start("api").await, start("api").await];
    let mut workers = vec![start("worker").await, start("worker").await];
    let publisher = apis[0].publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let load = Load::start(&publisher, &[apis[0].address, apis[1].address], 8);
    goes_on(&load).await;
    until_all_are_registered(database.pool()).await;

    for _ in 0..2 {
        // Publishers hear of the new one before the old one leaves, and that it has left afterwards.
        apis.push(start("api").await);
        load.publish_to(apis.iter().map(|server| server.address).collect());
        goes_on(&load).await;
        end(apis.remove(0)).await;
        load.publish_to(apis.iter().map(|server| server.address).collect());
        goes_on(&load).await;
        workers.push(start("worker").await);
        end(workers.remove(0)).await;
        goes_on(&load).await;
    }

    until_all_are_registered(database.pool()).await;
    assert_eq!(registered(database.pool(), true).await, ["api", "api", "worker", "worker"]);
    let shown = async || counter(apis[0].address, "postrider_active_workers").await;
    until("the workers are seen by who does not deliver", async || shown().await == 2).await;
    let counts = load.counts();
    assert_eq!(counts.refused_twice, 0, "{counts:?}");
    let ledger = load.stop().await;
    until_nothing_is_open(database.pool()).await;
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!((report.interrupted_attempts, report.repeated_requests, report.dead_lettered), (0, 0, 0));
}
