//! A replay of a hundred thousand letters: what a batch costs does not grow with what was done before it.

use std::time::Duration;

use postrider_store::replay::{self, Filter, Status};
use tokio::time::Instant;

use super::{OPEN, World};

const EVENTS: i32 = 50_000;
const LETTERS: u32 = 100_000;
const BATCH: u16 = 256;

/// Copies of one event and its two letters, with ids in the order of time.
const FILL: &str = "
    WITH made AS (
        SELECT e.*, (lpad(to_hex(n), 12, '0') || '7000' || '8' || lpad(to_hex(n), 11, '0') || '0000')::uuid AS id
          FROM (SELECT * FROM postrider.events LIMIT 1) e, generate_series(1, $1) n
    ), stored AS (
        INSERT INTO postrider.events (tenant_id, event_id, application_id, event_type, content_type, body, trace_id,
               delivery_count, accepted_at)
        SELECT tenant_id, id, application_id, event_type, content_type, body, trace_id, 2, accepted_at FROM made
    )
    INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
           accepted_at, ended_at, outcome, dead_reason, attempt_number)
    SELECT d.tenant_id, (left(m.id::text, 32) || right(d.delivery_id::text, 4))::uuid, m.id, d.application_id,
           d.endpoint_id, d.signing_key_id, d.accepted_at, d.ended_at, d.outcome, d.dead_reason, d.attempt_number
      FROM made m, postrider.deliveries d";

#[expect(clippy::disallowed_methods, reason = "what is measured is the machine's time")]
fn began() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn the_last_batch_of_many_letters_costs_what_the_first_did() {
    let mut world = World::with_letters(1).await;
    let fill = sqlx::query(FILL).bind(EVENTS).execute(world.history.pool()).await;
    assert_eq!(fill.expect("filled").rows_affected(), u64::from(LETTERS));
    sqlx::raw_sql("ANALYZE").execute(world.history.pool()).await.expect("analysed");

    let previewed = began();
    let replay = world.preview(&Filter::default()).await;
    let previewed = previewed.elapsed();
    assert_eq!(replay.matches, LETTERS + 2);
    world.execute(replay.id).await.expect("executed");
    let mut batches = Vec::new();
    loop {
        let batch = began();
        let Some(advanced) = world.turn(BATCH).await else { break };
        batches.push(batch.elapsed());
        assert!(advanced.replayed <= BATCH.into());
    }
    replay::finish(&mut world.lane, 1).await.expect("ended");
    let shown = world.look(replay.id).await;
    assert_eq!((shown.status, shown.replayed), (Status::Finished, LETTERS + 2));
    assert_eq!(world.count(OPEN).await, i64::from(LETTERS) + 2);

    let middle = |batches: &[Duration]| {
        let mut sorted = batches.to_vec();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    };
    let (first, last) = (middle(&batches[..50]), middle(&batches[batches.len() - 50..]));
    eprintln!(
        "preview {previewed:?}; {} batches of {BATCH}: {first:?} at first, {last:?} at last",
        batches.len()
    );
    assert!(last < 4 * first, "{first:?} at first, {last:?} at last");
}
