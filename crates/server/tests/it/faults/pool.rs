//! Every connection of the shared pool is held: requests that need one are refused soon, the process lives and says that it
//! is not ready, and publishing, which has connections of its own, goes on.

use std::time::Duration;

use postrider_testkit::{ledger::Ledger, postgres::Database, receiver::Receiver};
use serde_json::Value;
use tokio::{task::JoinSet, time::timeout};

use super::scene::{OVER, until, until_nothing_is_open, until_sessions_wait};
use crate::{api::call, server::Server};

const HELD: usize = 2;
/// The wait for a connection has its limit at 3 seconds; this leaves room for a busy machine.
const SOON: Duration = Duration::from_secs(8);

#[tokio::test]
async fn an_exhausted_pool_refuses_soon_and_holds_up_nothing_else() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let held = HELD.to_string();
    let server = Server::start_with(&database, "all", &[("POSTRIDER_DATABASE_POOL", &held)]).await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    // The publisher is known and the endpoint's key is in memory.
    let mut accepted = vec![publisher.publish("[0]").await];
    receiver.wait_for(1).await;

    // Whoever shows a management token now waits, and holds a connection meanwhile.
    let mut obstacle = database.pool().begin().await.unwrap();
    let lock = "LOCK TABLE postrider.management_keys IN ACCESS EXCLUSIVE MODE";
    sqlx::query(lock).execute(&mut *obstacle).await.unwrap();
    let mut hanging = JoinSet::new();
    for _ in 0..HELD {
        let publisher = publisher.clone();
        hanging.spawn(async move { publisher.manage("GET", "/applications", Value::Null, 200).await });
    }
    until_sessions_wait(database.pool(), "Lock", i64::try_from(HELD).unwrap()).await;

    let [owner, _] = publisher.tokens();
    let refused = call(server.address, "GET", "/api/tenants/acme/endpoints", owner, "");
    let refused = timeout(SOON, refused).await.expect("it is answered soon");
    assert_eq!(refused.status, 503, "{refused:?}");
    let unready = timeout(SOON, server.get("/health/ready")).await.expect("it is answered soon");
    assert_eq!(unready.status, 503, "{unready:?}");
    assert_eq!(server.get("/health/live").await.status, 200);
    accepted.push(publisher.publish("[1]").await);
    receiver.wait_for(2).await;
    assert!(hanging.try_join_next().is_none(), "the connections are held all the while");

    obstacle.rollback().await.unwrap();
    hanging.join_all().await;
    until("the process is ready", async || server.get("/health/ready").await.status == 200).await;
    until_nothing_is_open(database.pool()).await;
    let ledger = Ledger { accepted, ..Ledger::default() }.with_receiver(&receiver);
    let report = ledger.check(database.pool(), OVER).await;
    assert_eq!((report.delivered, report.repeated_requests), (2, 0));
}
