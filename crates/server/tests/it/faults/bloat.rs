//! The queue's size follows what is open, not what has passed through it.

use postrider_testkit::{postgres::Database, receiver::Receiver};
use sqlx::PgPool;

use super::{
    load::Load,
    scene::{OVER, count, until_nothing_is_open},
};
use crate::server::Server;

const ROUNDS: usize = 6;
const EVENTS_PER_ROUND: usize = 500;
/// What one row takes at least, in the table and its indexes.
const ROW_BYTES: usize = 250;

/// The table and its indexes, in bytes.
const SIZE: &str = "SELECT pg_total_relation_size('postrider.delivery_queue')";

async fn clean_up(pool: &PgPool) {
    sqlx::query("VACUUM postrider.delivery_queue").execute(pool).await.unwrap();
}

#[tokio::test]
async fn what_passed_through_the_queue_leaves_no_growing_table_behind() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let load = Load::start(&publisher, &[server.address], 8);
    let mut sizes = Vec::new();
    for _ in 0..ROUNDS {
        let before = load.counts().accepted;
        load.until("a round has passed", |counts| counts.accepted >= before + EVENTS_PER_ROUND).await;
        clean_up(database.pool()).await;
        sizes.push(count(database.pool(), SIZE).await);
    }
    // More or less is open when each round ends; a queue that kept what ended would grow by all of it.
    let kept_bytes = i64::try_from((ROUNDS - 1) * EVENTS_PER_ROUND * ROW_BYTES).unwrap();
    let grown_bytes = sizes[ROUNDS - 1] - sizes[0];
    assert!(grown_bytes < kept_bytes / 2, "the queue grew from round to round: {sizes:?}");
    let ledger = load.stop().await;
    until_nothing_is_open(database.pool()).await;
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert!(report.events >= ROUNDS * EVENTS_PER_ROUND, "{report:?}");

    // Between two passes of the clean-up few rows are dead, and changed rows stay on their page.
    let options: Vec<String> = sqlx::query_scalar(
        "SELECT unnest(reloptions) FROM pg_class WHERE oid = 'postrider.delivery_queue'::regclass",
    )
    .fetch_all(database.pool())
    .await
    .unwrap();
    for needed in ["fillfactor=70", "autovacuum_vacuum_scale_factor=0.02", "autovacuum_vacuum_threshold=2000"]
    {
        assert!(options.iter().any(|option| option == needed), "{needed} is not among {options:?}");
    }
}
