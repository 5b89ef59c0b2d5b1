//! The settle lane: results of attempts, written in batches that form by themselves.
//!
//! Invariant: a result is kept until it is written or its lease is certainly dead. While the database is away results
//! wait here, and since their permits wait with them, sending stops too.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    delivery::Next,
    id::{EndpointId, TenantId},
    queue::{Bucket, Pointer, Receipt},
};
use postrider_store::{
    Error,
    failpoint::{self, Point},
    hold,
    lanes::{Lane, Line, bounded},
    outbox::{self, Message},
    settle::{self, Settlement},
};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    batch::{self, Bounds},
    identity::Held,
    transport::Transport,
    worker::{LEASE_HARD_LIMIT, Worker},
};

const BOUNDS: Bounds = Bounds { max_items: 1_000, max_weight: usize::MAX };
/// Results that may wait because their rows are locked; beyond that their leases are left to expire.
const MAX_ASIDE: usize = 1_000;
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
    /// Of the message that named it: acknowledged once this is dropped.
    pub receipt: Option<Receipt>,
}

impl Concluded {
    /// Whether a broker is to hear of it: what is to be tried again comes back to a worker after its wait, and people see
    /// what ended without success.
    const fn is_announced(&self) -> bool {
        match &self.settlement.result {
            settle::Result::Attempted { next, .. } => match next {
                Next::Scheduled(_) | Next::DeadLettered(_) => true,
                Next::Delivered(_) => false,
            },
            settle::Result::Released => false,
        }
    }
}

/// What a broker is to hear of those results that counted.
fn messages(part: &[Concluded], held: &[bool]) -> Vec<Message> {
    let (mut later, mut messages) = (Vec::new(), Vec::new());
    for concluded in part.iter().zip(held).filter_map(|(concluded, held)| held.then_some(concluded)) {
        let settle::Result::Attempted { next, .. } = &concluded.settlement.result else { continue };
        let pointer = |delivery_id, attempt_number| Pointer {
            tenant_id: concluded.settlement.tenant_id,
            endpoint_id: concluded.endpoint_id,
            delivery_id,
            attempt_number,
        };
        match next {
            Next::Delivered(_) => {}
            Next::Scheduled(next) => {
                later.push((Bucket::for_wait(next.delay), pointer(next.run.id, next.run.attempt_number)));
            }
            Next::DeadLettered(dead) => {
                messages.extend(outbox::dead(pointer(dead.id, dead.attempt_number), dead.reason));
            }
        }
    }
    messages.extend(outbox::waiting(&later));
    messages
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
    let mut lane = SettleLane {
        line: Line::new(worker.options.clone(), Lane::Work),
        disabling: TaskTracker::new(),
        worker: Arc::clone(&worker),
    };
    // Results whose rows were locked: they come along with the next batch, so that they hold up nobody.
    let mut aside = Vec::new();
    loop {
        let first = tokio::select! {
            first = receiver.recv() => first,
            () = closed.cancelled(), if !receiver.is_closed() => {
                receiver.close();
                continue;
            }
            () = worker.clock.sleep(RETRY_PAUSE), if !aside.is_empty() => aside.pop(),
        };
        let Some(first) = first.or_else(|| aside.pop()) else { break };
        let mut batch = batch::gather(first, &mut receiver, BOUNDS, |_| 1).await;
        metrics::histogram!("postrider_settle_batch_size").record(size(batch.len()));
        batch.append(&mut aside);
        failpoint::reach(Point::SettleGathered).await;
        aside = lane.write(batch).await;
        aside.truncate(MAX_ASIDE);
    }
    lane.disabling.close();
    lane.disabling.wait().await;
    Ok(())
}

struct SettleLane<T> {
    line: Line,
    worker: Arc<Worker<T>>,
    /// Endpoints being disabled.
    disabling: TaskTracker,
}

impl<T: Transport> SettleLane<T> {
    /// Writes a batch; one that holds a refused value, or a row that somebody has locked, is halved until that one
    /// stands alone. Returns what stayed locked.
    async fn write(&mut self, batch: Vec<Concluded>) -> Vec<Concluded> {
        let mut locked = Vec::new();
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            match self.try_write(&part).await {
                Ok(held) => {
                    failpoint::reach(Point::SettleWritten).await;
                    for (concluded, held) in part.into_iter().zip(held) {
                        self.finish(&concluded, held);
                    }
                }
                Err(Error::Data(error)) if part.len() == 1 => {
                    let delivery_id =
                        part.first().map(|concluded| concluded.settlement.delivery_id.to_string());
                    tracing::error!(delivery_id, %error, "a result cannot be stored; its attempt will count as interrupted");
                }
                Err(Error::Contended(_)) if part.len() == 1 => locked.append(&mut self.still_ours(part)),
                Err(Error::Data(_) | Error::Contended(_)) => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
                Err(Error::Unavailable(_)) => {
                    self.worker.clock.sleep(RETRY_PAUSE).await;
                    let part = self.still_ours(part);
                    if !part.is_empty() {
                        parts.push(part);
                    }
                }
            }
        }
        locked
    }

    /// Drops results whose lease is certainly dead: whoever owns the delivery by then has recorded the attempt as
    /// interrupted.
    fn still_ours(&self, mut part: Vec<Concluded>) -> Vec<Concluded> {
        let now = self.worker.clock.monotonic();
        part.retain(|concluded| now.saturating_sub(concluded.claimed) < LEASE_HARD_LIMIT);
        part
    }

    async fn try_write(&mut self, part: &[Concluded]) -> Result<Vec<bool>, Error> {
        let settlements: Vec<&Settlement> = part.iter().map(|concluded| &concluded.settlement).collect();
        let connection = self.line.connection().await?;
        let Some(queue) = self.worker.queue.as_ref().filter(|_| part.iter().any(Concluded::is_announced))
        else {
            let written = bounded(settle::settle(connection, &settlements)).await;
            return self.line.checked(written);
        };
        let written =
            bounded(settle::settle_announcing(connection, &settlements, |held| messages(part, held))).await;
        if written.is_ok() {
            queue.announced();
        }
        self.line.checked(written)
    }

    /// What follows once a result is durable.
    fn finish(&self, concluded: &Concluded, held: bool) {
        if !held {
            // Another process took the delivery over while this one was too slow; or an earlier try was written and its answer
            // was lost.
            metrics::counter!("postrider_stale_results_total").increment(1);
            return;
        }
        match &concluded.settlement.result {
            settle::Result::Released => {
                self.worker.ready.add_pending(concluded.settlement.tenant_id, concluded.endpoint_id, None);
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
            let worker = Arc::clone(&self.worker);
            self.disabling.spawn(async move { disable(&worker, gone).await });
        }
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
