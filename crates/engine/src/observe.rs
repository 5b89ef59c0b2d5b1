//! What an operator should see of the database before it hurts, measured now and then on a shared connection, in processes
//! of every role: where no process delivers, one that accepts events has to tell.

use std::{convert::Infallible, sync::Arc, time::Duration};

use postrider_store::{backlog, instances, oldest_transaction};
use sqlx::PgPool;

use crate::{clock::Clock, heartbeat, supervisor::Shutdown};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(5);
/// After a look it rests at least so many times as long as the look took, and as many times more as there are workers: what is
/// open is counted to the last delivery, by each of them.
const REST_FACTOR: u32 = 50;

/// Runs until the drain.
pub async fn run(pool: PgPool, clock: Arc<dyn Clock>, shutdown: Shutdown) -> Result<(), Infallible> {
    let mut workers = 1;
    loop {
        let started = clock.monotonic();
        match look(&pool).await {
            Ok(active) => workers = active,
            // The lanes tell of a database that is away; until it is back the last values stand.
            Err(error) => tracing::debug!(%error, "the state of the database is not known"),
        }
        let took = clock.monotonic().saturating_sub(started);
        tokio::select! {
            () = clock.sleep(INTERVAL.max(took.saturating_mul(REST_FACTOR).saturating_mul(workers))) => {}
            () = shutdown.draining() => return Ok(()),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of rows are far below what a float holds exactly")]
/// How many workers there are, at least one.
async fn look(pool: &PgPool) -> Result<u32, sqlx::Error> {
    let age = oldest_transaction::age(pool).await?;
    metrics::gauge!("postrider_oldest_transaction_seconds").set(age.as_secs_f64());
    let workers = instances::active_workers(pool, heartbeat::TIME_TO_LIVE).await?;
    metrics::gauge!("postrider_active_workers").set(workers as f64);
    let open = backlog::open(pool).await?;
    for (queue, count) in [
        ("ready", open.ready),
        ("in_flight", open.in_flight),
        ("scheduled", open.scheduled),
        ("held", open.held),
    ] {
        metrics::gauge!("postrider_backlog", "queue" => queue).set(count as f64);
    }
    metrics::gauge!("postrider_backlog_oldest_seconds", "queue" => "ready")
        .set(open.oldest_ready.as_secs_f64());
    let outbox = backlog::outbox(pool, u64::MAX).await?;
    metrics::gauge!("postrider_backlog", "queue" => "outbox").set(outbox.messages as f64);
    metrics::gauge!("postrider_backlog_oldest_seconds", "queue" => "outbox").set(outbox.oldest.as_secs_f64());
    Ok(u32::try_from(workers).unwrap_or(u32::MAX).max(1))
}
