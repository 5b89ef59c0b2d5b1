//! An outage fills the history with dead letters faster than PostgreSQL learns of them, and the first replay comes before it
//! does.

use postrider_store::{
    lanes::{self, Lane},
    replay::Filter,
};

use super::{World, options, turn};

/// What the history was when statistics were last made, and what it has become since.
const OUTAGE: &str = "
    ALTER TABLE postrider.deliveries SET (autovacuum_enabled = false);
    INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
           accepted_at, ended_at, outcome, attempt_number)
    SELECT tenant_id, gen_random_uuid(), event_id, application_id, endpoint_id, signing_key_id, now(), now(),
           'delivered', 1
      FROM (SELECT * FROM postrider.deliveries LIMIT 1) AS d, generate_series(1, 7000);
    ANALYZE postrider.deliveries;
    INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
           accepted_at, ended_at, outcome, dead_reason, attempt_number)
    SELECT tenant_id, gen_random_uuid(), event_id, application_id, endpoint_id, signing_key_id, now(), now(),
           'dead_lettered', 'rejected', 1
      FROM (SELECT * FROM postrider.deliveries LIMIT 1) AS d, generate_series(1, 20000)";
const READ: &str = "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables
                     WHERE relid = 'postrider.deliveries'::regclass";
/// Rows that a turn of one letter may read: it is locked, found again and deleted.
const FEW: i64 = 20;

/// Rows of the history that were read so far.
async fn read(world: &mut World) -> i64 {
    sqlx::raw_sql("SELECT pg_stat_force_next_flush()").execute(&mut world.lane).await.expect("it is told");
    sqlx::raw_sql("SELECT 1").execute(&mut world.lane).await.expect("the next statement");
    world.count(READ).await
}

#[tokio::test]
async fn a_turn_reads_its_own_letters_though_statistics_are_older_than_the_outage() {
    let mut world = World::with_letters(1).await;
    sqlx::raw_sql(OUTAGE).execute(world.history.pool()).await.expect("an outage");
    let letters = world.die("order.created").await;
    let preview = world.preview(&Filter { ids: Some(letters.clone()), ..Filter::default() }).await;
    world.execute(preview.id).await.expect("executed");
    world.lane = lanes::connect(&options(&world.history), Lane::Work).await.expect("a connection");
    let before = read(&mut world).await;
    for _ in &letters {
        let advanced = turn(&mut world.lane, &world.history, 100).await.expect("a turn");
        assert_eq!(advanced.replayed, 1);
    }
    let rows = read(&mut world).await - before;
    assert!(rows <= FEW * 2, "{rows} rows were read for {} letters", letters.len());
    assert!(rows > 0, "nothing was counted");
}
