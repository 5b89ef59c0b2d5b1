//! The plans of the statements that every pass and every batch of a replay runs: each row is reached through an index, on
//! tables that are empty, full, and full but not analysed.

use postrider_store::{
    edit,
    lanes::{self, Lane},
    replay::{self, Filter},
};
use sqlx::{AssertSqlSafe, PgConnection, postgres::PgPoolOptions};

use super::{World, options, turn};
use crate::plans::assert_no_table_is_read_whole;

/// Dead letters by the thousand, of the tenant and of others, and a replay of each.
const FILL: &str = "
    INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
           accepted_at, ended_at, outcome, dead_reason, attempt_number)
    SELECT tenant_id, gen_random_uuid(), event_id, application_id, endpoint_id, signing_key_id, now(), now(),
           'dead_lettered', 'rejected', 1
      FROM (SELECT * FROM postrider.deliveries WHERE outcome = 'dead_lettered' LIMIT 1) d, generate_series(1, 20000);
    INSERT INTO postrider.events (tenant_id, event_id, application_id, event_type, content_type, body, trace_id,
           delivery_count, accepted_at)
    SELECT tenant_id, gen_random_uuid(), application_id, event_type, content_type, body, trace_id, 1, now()
      FROM (SELECT * FROM postrider.events LIMIT 1) e, generate_series(1, 20000);
    INSERT INTO postrider.replay_items (tenant_id, replay_id, endpoint_id, delivery_id, attempt_number, ended_at)
    SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1, now()
      FROM generate_series(1, 20000);
    INSERT INTO postrider.replay_endpoints (tenant_id, replay_id, endpoint_id, items_left)
    SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 1 FROM generate_series(1, 20000);
    INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
           accepted_at, deadline_at, state, pending_since, attempt_number, tries, replay_id)
    SELECT tenant_id, gen_random_uuid(), event_id, application_id, gen_random_uuid(), signing_key_id, now(),
           now() + interval '1 day', 'pending', now(), 0, 0, gen_random_uuid()
      FROM (SELECT * FROM postrider.deliveries LIMIT 1) d, generate_series(1, 20000);";

/// What one endpoint's turn, and the look for it, run on the lane.
const STATEMENTS: usize = 20;

/// What a preview runs.
const PREVIEW_STATEMENTS: usize = 6;

async fn execute(connection: &mut PgConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await.expect("the statement runs");
}

#[tokio::test]
async fn no_statement_of_a_replay_reads_a_whole_table() {
    let mut world = World::with_letters(2).await;
    for (change, when) in [("SELECT 1", "empty"), (FILL, "full, not analysed"), ("ANALYZE", "full")] {
        let mut administration = world.history.pool().acquire().await.expect("a connection");
        execute(&mut administration, change).await;
        drop(administration);
        let letters = world.die("order.created").await;
        let preview = world.preview(&Filter { ids: Some(letters.clone()), ..Filter::default() }).await;
        world.execute(preview.id).await.expect("executed");
        world.lane = lanes::connect(&options(&world.history), Lane::Work).await.expect("a connection");
        let lane = &mut world.lane;
        replay::due_tenants(lane, None, 10).await.expect("tenants");
        for _ in &letters {
            turn(lane, &world.history, 100).await.expect("a turn");
        }
        assert!(turn(lane, &world.history, 100).await.is_none());
        replay::finish(lane, 10).await.expect("ended");
        replay::running(lane).await.expect("counted");
        replay::expire(lane, 10).await.expect("expired");
        while replay::tidy(lane, 100).await.expect("tidied") {}
        assert_no_table_is_read_whole(lane, STATEMENTS, when).await;
    }
}

/// Each filter is an index walk from the first id to the last, or a look-up of each id.
#[tokio::test]
async fn no_preview_reads_the_whole_history() {
    let mut world = World::with_letters(2).await;
    let mut administration = world.history.pool().acquire().await.expect("a connection");
    execute(&mut administration, FILL).await;
    let delivered = "
        INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
               accepted_at, ended_at, outcome, attempt_number)
        SELECT tenant_id, gen_random_uuid(), event_id, application_id, endpoint_id, signing_key_id, now(), now(),
               'delivered', 1
          FROM (SELECT * FROM postrider.deliveries LIMIT 1) d, generate_series(1, 50000);
        ANALYZE";
    execute(&mut administration, delivered).await;
    drop(administration);
    let letters = world.die("order.created").await;
    // With nothing prepared by others.
    let alone = PgPoolOptions::new().max_connections(1).connect_with(options(&world.history)).await;
    let mut transaction = edit::begin(&alone.expect("a connection")).await.expect("a transaction begins");
    for filter in [
        Filter::default(),
        Filter { event_types: Some("order.*".parse().expect("a pattern")), ..Filter::default() },
        Filter { ids: Some(letters), ..Filter::default() },
    ] {
        let new = replay::NewReplay {
            id: uuid::Uuid::now_v7().into(),
            filter: &filter,
            filter_text: "{}",
            most: 100,
        };
        replay::preview(&mut transaction, world.history.tenant.id, new, 10).await.expect("a preview");
    }
    execute(&mut transaction, "SET LOCAL plan_cache_mode = force_generic_plan").await;
    assert_no_table_is_read_whole(&mut transaction, PREVIEW_STATEMENTS, "full").await;
}
