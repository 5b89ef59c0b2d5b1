//! The settle lane: results of attempts, written in batches that form by themselves.
//!
//! Invariant: a result is kept until it is written or its lease is certainly dead. While the database is away results
//! wait here, and since their permits wait with them, sending stops too.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    delivery::Next,
    id::{EndpointId, TenantId},
};
use postrider_store::{
    Error, hold,
    lanes::{self, Lane},
    settle::{self, Settlement},
};
use sqlx::PgConnection;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    batch::{self, Bounds},
    identity::Held,
    ready::Turn,
    transport::Transport,
    worker::{LEASE_HARD_LIMIT, Worker},
};

const BOUNDS: Bounds = Bounds { max_items: 1_000, max_weight: usize::MAX };
/// Between two tries to write a batch.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// A result on its way into the database.
#[derive(Debug)]
#[must_use]
pub struct Concluded {
    pub settlement: Settlement,
    pub endpoint_id: EndpointId,
    /// From acceptance to the end of the attempt.
    pub accepted_ago: Duration,
    /// Monotonic time of the claim.
    pub claimed: Duration,
    /// The receiver answered 410 Gone.
    pub gone: Option<Gone>,
    pub held: Held,
}

/// An endpoint that is to be disabled, if it is still the one that answered.
#[derive(Debug, Clone, Copy)]
pub struct Gone {
    pub tenant_id: TenantId,
    pub endpoint_id: EndpointId,
    pub version: i64,
}

/// Runs until `closed`, and then until everything in hand is written.
pub async fn run<T: Transport>(
    worker: Arc<Worker<T>>,
    mut receiver: mpsc::Receiver<Concluded>,
    closed: CancellationToken,
) -> Result<(), std::convert::Infallible> {
    let mut connection = None;
    loop {
        let first = tokio::select! {
            first = receiver.recv() => first,
            () = closed.cancelled(), if !receiver.is_closed() => {
                receiver.close();
                continue;
            }
        };
        let Some(first) = first else { return Ok(()) };
        let batch = batch::gather(first, &mut receiver, BOUNDS, |_| 1).await;
        metrics::histogram!("postrider_settle_batch_size").record(size(batch.len()));
        write(&worker, &mut connection, batch).await;
    }
}

/// Writes a batch; one that holds a refused value is halved until that value stands alone.
async fn write<T: Transport>(
    worker: &Arc<Worker<T>>,
    connection: &mut Option<PgConnection>,
    batch: Vec<Concluded>,
) {
    let mut parts = vec![batch];
    while let Some(mut part) = parts.pop() {
        let settlements: Vec<Settlement> =
            part.iter().map(|concluded| concluded.settlement.clone()).collect();
        match try_write(worker, connection, &settlements).await {
            Ok(held) => {
                for (concluded, held) in part.into_iter().zip(held) {
                    finish(worker, &concluded, held);
                }
            }
            Err(Error::Data(error)) if part.len() == 1 => {
                let delivery_id = settlements.first().map(|settlement| settlement.delivery_id.to_string());
                tracing::error!(delivery_id, %error, "a result cannot be stored; its attempt will count as interrupted");
            }
            Err(Error::Data(_)) => {
                let second = part.split_off(part.len() / 2);
                parts.extend([second, part]);
            }
            Err(Error::Contended(error) | Error::Unavailable(error) | Error::Unknown(error)) => {
                tracing::warn!(%error, results = part.len(), "results wait for the database");
                worker.clock.sleep(RETRY_PAUSE).await;
                let now = worker.clock.monotonic();
                // Whoever else owns a delivery by then has recorded this attempt as interrupted.
                part.retain(|concluded| now.saturating_sub(concluded.claimed) < LEASE_HARD_LIMIT);
                if !part.is_empty() {
                    parts.push(part);
                }
            }
        }
    }
}

async fn try_write<T>(
    worker: &Worker<T>,
    connection: &mut Option<PgConnection>,
    settlements: &[Settlement],
) -> Result<Vec<bool>, Error> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(lanes::connect(&worker.options, Lane::Work).await?),
    };
    let result = settle::settle(open, settlements).await;
    if matches!(result, Err(Error::Unavailable(_) | Error::Unknown(_))) {
        *connection = None;
    }
    result
}

/// What follows once a result is durable.
fn finish<T: Transport>(worker: &Arc<Worker<T>>, concluded: &Concluded, held: bool) {
    if !held {
        // Another process took the delivery over while this one was too slow.
        metrics::counter!("postrider_stale_results_total").increment(1);
        return;
    }
    match &concluded.settlement.result {
        settle::Result::Released => {
            let turn = Turn {
                tenant_id: concluded.settlement.tenant_id,
                endpoint_id: concluded.endpoint_id,
                low_water: None,
            };
            worker.ready.add(turn, Duration::ZERO);
        }
        settle::Result::Attempted { attempt, next } => {
            let outcome = match next {
                Next::Delivered(_) => "delivered",
                Next::Scheduled(_) => "scheduled",
                Next::DeadLettered(_) => "dead_lettered",
            };
            metrics::counter!("postrider_attempts_total", "outcome" => outcome).increment(1);
            metrics::histogram!("postrider_attempt_duration_seconds").record(attempt.latency);
            if matches!(next, Next::Delivered(_)) {
                metrics::histogram!("postrider_delivery_duration_seconds").record(concluded.accepted_ago);
            }
        }
    }
    if let Some(gone) = concluded.gone {
        let worker = Arc::clone(worker);
        worker.clone().deliveries.spawn(async move { disable(&worker, gone).await });
    }
}

/// Disables an endpoint in a transaction of its own. If that fails, its next 410 tries again.
async fn disable<T>(worker: &Worker<T>, gone: Gone) {
    match hold::disable_gone(&worker.pool, gone.tenant_id, gone.endpoint_id, gone.version).await {
        Ok(true) => {
            tracing::warn!(tenant_id = %gone.tenant_id, endpoint_id = %gone.endpoint_id, "endpoint disabled: it answered 410 Gone");
        }
        Ok(false) => {}
        Err(error) => {
            tracing::error!(endpoint_id = %gone.endpoint_id, %error, "an endpoint that is gone was not disabled");
        }
    }
}

/// A batch's size as a sample.
#[expect(clippy::cast_precision_loss, reason = "a batch has at most some thousand items")]
pub fn size(items: usize) -> f64 {
    items as f64
}
