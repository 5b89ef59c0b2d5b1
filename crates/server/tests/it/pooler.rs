//! Processes whose queries go by a pooler that gives each transaction another session, as it is installed.

use futures::future::join_all;
use postrider_testkit::{pgbouncer::Pooler, postgres::Database, receiver::Receiver};

use crate::server::Server;

/// More than the pooler has sessions.
const AT_ONCE: usize = 40;

#[tokio::test]
async fn everything_works_by_way_of_a_pooler() {
    let database = Database::fresh().await;
    let pooler = Pooler::before(database.url()).await;
    let place = [("DATABASE_URL", pooler.url()), ("POSTRIDER_DIRECT_DATABASE_URL", database.url())];
    let accepting = Server::start_with(&database, "api", &place).await;
    let working = Server::start_with(&database, "worker", &place).await;
    let receiver = Receiver::start().await;
    let publisher = accepting.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;

    let accepted = join_all((0..AT_ONCE).map(|_| publisher.publish("[1]"))).await;
    join_all(accepted.iter().map(|event| publisher.wait_for_delivery(event, "delivered"))).await;
    let reads = join_all((0..AT_ONCE).map(|_| accepting.get("/health/ready"))).await;
    assert!(reads.iter().all(|answer| answer.status == 200), "{reads:?}");
    assert_eq!(working.get("/health/ready").await.status, 200);

    pooler.freeze();
    assert_eq!(accepting.get("/health/ready").await.status, 503, "a pooler that hangs is noticed");
    let accepted = publisher.publish("[2]").await;
    receiver.wait_for(AT_ONCE + 1).await;
    pooler.thaw();
    publisher.wait_for_delivery(&accepted, "delivered").await;
    assert_eq!(accepting.get("/health/ready").await.status, 200, "and is used again when it answers");
}
