//! The queue's size follows what is open, not what has passed through it.

use postrider_testkit::{postgres::Database, receiver::Receiver};

use super::{
    load::Load,
    scene::{OVER, count, until, until_nothing_is_open},
};
use crate::server::Server;

/// After the first clean-up, within the room that it freed.
const MORE_EVENTS: usize = 600;
/// What one row takes at least, without the room that is kept free beside it.
const ROW_BYTES: usize = 250;

const SIZE: &str = "SELECT pg_table_size('postrider.delivery_queue')";
const VACUUMS: &str = "SELECT pg_stat_get_vacuum_count('postrider.delivery_queue'::regclass)";

/// Autovacuum is off, and nobody else cleans up but the process itself.
#[tokio::test]
async fn what_passed_through_the_queue_leaves_no_growing_table_behind() {
    let database = Database::fresh().await;
    let alone = "ALTER TABLE postrider.delivery_queue SET (autovacuum_enabled = off)";
    sqlx::raw_sql(alone).execute(database.pool()).await.unwrap();
    let receiver = Receiver::start().await;
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let load = Load::start(&publisher, &[server.address], 8);
    let is_cleaned_up = async || count(database.pool(), VACUUMS).await > 0;
    until("the process cleans up", is_cleaned_up).await;
    let (before, size_before) = (load.counts().accepted, count(database.pool(), SIZE).await);
    load.until("more has passed", |counts| counts.accepted >= before + MORE_EVENTS).await;
    let grown_bytes = count(database.pool(), SIZE).await - size_before;
    let ledger = load.stop().await;
    until_nothing_is_open(database.pool()).await;
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert!(report.events >= before + MORE_EVENTS, "{report:?}");
    let kept_bytes = i64::try_from(MORE_EVENTS * ROW_BYTES).unwrap();
    assert!(grown_bytes < kept_bytes / 2, "what came after took {grown_bytes} bytes more than {size_before}");
}
