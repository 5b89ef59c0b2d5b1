//! Writes finished deliveries by SQL, on two connections that take batches by turns.

use std::ops::Range;

use anyhow::ensure;
use futures::future::try_join;
use sqlx::{Connection as _, Executor as _, PgConnection};

/// Events of one statement.
const BATCH: u32 = 50_000;
/// How far back the oldest event lies; the newest was accepted an hour ago.
const AGE_MS: i64 = 30 * 24 * 3_600_000;
const NEWEST_MS: i64 = 3_600_000;

pub(super) async fn write(url: &str, deliveries: u32) -> anyhow::Result<()> {
    let mut connections = (connect(url).await?, connect(url).await?);
    let now_ms: i64 = sqlx::query_scalar("SELECT (extract(epoch FROM now()) * 1000)::bigint")
        .fetch_one(&mut connections.0)
        .await?;
    let first_ms = now_ms - AGE_MS;
    let step_ms = (AGE_MS - NEWEST_MS) / i64::from(deliveries);
    let batches = batches(deliveries);
    let lane = |lane: usize| batches.iter().skip(lane).step_by(2);
    try_join(
        write_all(&mut connections.0, lane(0), first_ms, step_ms),
        write_all(&mut connections.1, lane(1), first_ms, step_ms),
    )
    .await?;
    connections.0.close().await?;
    connections.1.close().await?;
    Ok(())
}

/// Does what autovacuum would have done by then; returns the size of the database, once all rows are there.
pub(super) async fn clean(url: &str, deliveries: u32) -> anyhow::Result<u64> {
    let mut connection = connect(url).await?;
    for statement in [
        "VACUUM (ANALYZE) postrider.events",
        "VACUUM (ANALYZE) postrider.idempotency_keys",
        "VACUUM (ANALYZE) postrider.deliveries",
        "VACUUM (ANALYZE) postrider.attempts",
    ] {
        connection.execute(statement).await?;
    }
    let counts: (i64, i64, i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM postrider.events), (SELECT count(*) FROM postrider.idempotency_keys),
                (SELECT count(*) FROM postrider.deliveries),
                (SELECT count(*) FROM postrider.attempts WHERE outcome <> 'scheduled'),
                pg_database_size(current_database())",
    )
    .fetch_one(&mut connection)
    .await?;
    connection.close().await?;
    let (events, keys, ended, attempts, bytes) = counts;
    let all = i64::from(deliveries);
    ensure!(
        (events, keys, ended, attempts) == (all, all, all, all),
        "of {deliveries} deliveries there are {counts:?} rows"
    );
    Ok(bytes.try_into()?)
}

async fn connect(url: &str) -> anyhow::Result<PgConnection> {
    let mut connection = PgConnection::connect(url).await?;
    // Only here: it is all checkpointed before anything is measured.
    connection.execute("SET synchronous_commit = off; SET jit = off").await?;
    Ok(connection)
}

async fn write_all(
    connection: &mut PgConnection,
    batches: impl Iterator<Item = &Range<u32>>,
    first_ms: i64,
    step_ms: i64,
) -> anyhow::Result<()> {
    for batch in batches {
        sqlx::query(include_str!("past.sql"))
            .bind(i64::from(batch.start))
            .bind(i64::from(batch.end) - 1)
            .bind(first_ms)
            .bind(step_ms)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

fn batches(deliveries: u32) -> Vec<Range<u32>> {
    (0..deliveries.div_ceil(BATCH))
        .map(|place| place * BATCH..(place + 1).saturating_mul(BATCH).min(deliveries))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_every_event_once() {
        for deliveries in [1, BATCH - 1, BATCH, 2 * BATCH + 7] {
            let numbers: Vec<u32> = batches(deliveries).into_iter().flatten().collect();
            assert!(numbers.into_iter().eq(0..deliveries), "{deliveries}");
        }
    }
}
