//! What messages name is claimed and sent: the quick way where a broker is used. Each message is a hint; the rows decide.
//!
//! Invariant: whatever is not sent at once is left to the table and to its taker, who is fair. So a queue that is first
//! in, first out, holds up nobody: a message never waits for an endpoint that has no room.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use futures::FutureExt as _;
use postrider_core::{
    id::EndpointId,
    queue::{Arrival, Bucket, Pointer, Queue, Receipt},
};
use postrider_store::{
    Error,
    failpoint::{self, Point},
    lanes::{Lane, Line, bounded},
    outbox,
    routing::Endpoint,
    take::{self, Named},
};
use time::OffsetDateTime;

use crate::{
    batch::TURNS_BEFORE_CLOSING,
    deliver::{self, Leased},
    directory,
    limits::{Admission, Source},
    transport::Transport,
    wake::Notifier,
    worker::{LEASE_HARD_LIMIT, Worker, fresh_token},
};

/// Deliveries in one statement; the message that crosses it is the last.
const MOST_AT_ONCE: usize = 512;
/// After an error of the database.
const ERROR_PAUSE: Duration = Duration::from_millis(300);

/// A delivery that a message names.
struct Hint {
    pointer: Pointer,
    receipt: Receipt,
}

/// A hint that may be followed.
struct Admitted {
    hint: Hint,
    admission: Admission,
}

/// Runs until the drain.
pub async fn run<T: Transport>(
    worker: Arc<Worker<T>>,
    queue: Arc<dyn Queue>,
    notifier: Notifier,
) -> Result<(), Infallible> {
    // What is claimed last is among the deliveries that the drain waits for.
    let _deliveries = worker.deliveries.token();
    let mut line = Line::new(worker.options.clone(), Lane::Work);
    loop {
        let first = tokio::select! {
            first = queue.arrival() => first,
            () = worker.shutdown.draining() => return Ok(()),
        };
        let hints = gather(first, &*queue).await;
        if !is_beating(&worker) {
            // Left to the table, and so to others; and they are left those that have not come yet.
            while !is_beating(&worker) && worker.pause(ERROR_PAUSE).await {}
            continue;
        }
        if let Err(error) = follow(&worker, &mut line, hints, &notifier).await {
            if !error.is_lost() {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "deliveries that messages name cannot be claimed"
                );
            }
            worker.pause(ERROR_PAUSE).await;
        }
    }
}

fn is_beating<T>(worker: &Worker<T>) -> bool {
    worker.identity.life().is_beating(worker.clock.monotonic())
}

/// What is there behind a first message, and what arrives in the next turns of the scheduler.
async fn gather(first: Arrival, queue: &dyn Queue) -> Vec<Hint> {
    let mut hints = Vec::new();
    let add = |hints: &mut Vec<Hint>, Arrival { pointers, receipt }: Arrival| {
        hints.extend(pointers.into_iter().map(|pointer| Hint { pointer, receipt: receipt.clone() }));
    };
    add(&mut hints, first);
    for _ in 0..TURNS_BEFORE_CLOSING {
        while hints.len() < MOST_AT_ONCE {
            let Some(arrival) = queue.arrival().now_or_never() else { break };
            add(&mut hints, arrival);
        }
        tokio::task::yield_now().await;
    }
    hints
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the queue cannot be read")]
    Take(#[from] Error),
    #[error("endpoints cannot be read")]
    Directory(#[from] directory::Error),
}

impl Failure {
    const fn is_lost(&self) -> bool {
        match self {
            Self::Take(error) => error.is_lost(),
            Self::Directory(error) => matches!(error, directory::Error::Database(_)),
        }
    }
}

/// Claims and sends what may be sent now. An error leaves everything to the table.
async fn follow<T: Transport>(
    worker: &Arc<Worker<T>>,
    line: &mut Line,
    hints: Vec<Hint>,
    notifier: &Notifier,
) -> Result<(), Failure> {
    let admitted = admit(worker, hints, notifier).await?;
    if admitted.is_empty() {
        return Ok(());
    }
    let identity = worker.identity.life();
    let asked_at = worker.clock.monotonic();
    let pointers: Vec<Pointer> = admitted.iter().map(|admitted| admitted.hint.pointer).collect();
    let lease =
        take::Lease { owner: identity.instance_id, token: fresh_token(), hard_limit: LEASE_HARD_LIMIT };
    let claimed = bounded(take::take_named(line.connection().await?, &pointers, lease)).await;
    let Named { claimed, early } = line.checked(claimed)?;
    failpoint::reach(Point::TakeClaimed).await;
    let mut admitted: Vec<Option<Admitted>> = admitted.into_iter().map(Some).collect();
    for (place, row) in claimed {
        let Some(Admitted { hint, admission }) = admitted.get_mut(place).and_then(Option::take) else {
            continue;
        };
        let held = identity.hold(row.delivery.lease_id());
        let leased = Leased { receipt: Some(hint.receipt), ..Leased::from_queue(row, asked_at, held) };
        worker.deliveries.spawn(deliver::deliver(Arc::clone(worker), leased, admission));
    }
    if !early.is_empty() {
        let early = early.into_iter().filter_map(|(place, wait)| Some((*pointers.get(place)?, wait)));
        wait_on(worker, line, early).await?;
    }
    Ok(())
}

/// Takes permits, the tenant with the fewest requests in flight first. What gets none is left to the table.
async fn admit<T>(
    worker: &Worker<T>,
    hints: Vec<Hint>,
    notifier: &Notifier,
) -> Result<Vec<Admitted>, directory::Error> {
    let mut by_endpoint: HashMap<EndpointId, Vec<Hint>> = HashMap::new();
    for hint in hints {
        by_endpoint.entry(hint.pointer.endpoint_id).or_default().push(hint);
    }
    let ids: Vec<EndpointId> = by_endpoint.keys().copied().collect();
    let mut endpoints = worker.directory.endpoints(&ids).await?;
    endpoints.sort_by_key(|endpoint| worker.limits.tenant_load(endpoint.tenant_id));
    let (mut admitted, mut left) = (Vec::new(), Vec::new());
    for endpoint in endpoints {
        let Some(hints) = by_endpoint.remove(&endpoint.endpoint_id) else { continue };
        let (tenant_id, endpoint_id) = (endpoint.tenant_id, endpoint.endpoint_id);
        // Where the taker knows of older ones, these stand behind them. Told again, it would look from the beginning.
        if !worker.ready.contains(endpoint_id) {
            if admit_at(worker, &endpoint, hints, &mut admitted) {
                continue;
            }
            worker.ready.add_pending(tenant_id, endpoint_id, None);
        }
        left.push((tenant_id, endpoint_id));
    }
    // Others may have room. They are told of rows that are older than a message could tell.
    notifier.wake(OffsetDateTime::UNIX_EPOCH, left);
    Ok(admitted)
}

/// The same for one endpoint; `true`: nothing is left.
fn admit_at<T>(
    worker: &Worker<T>,
    endpoint: &Endpoint,
    hints: Vec<Hint>,
    admitted: &mut Vec<Admitted>,
) -> bool {
    let wanted = u16::try_from(hints.len()).unwrap_or(u16::MAX);
    let grant = worker.limits.acquire(endpoint, wanted, Source::Queue, worker.clock.monotonic());
    let admissions = grant.admissions();
    let are_all = admissions.len() == hints.len();
    admitted.extend(hints.into_iter().zip(admissions).map(|(hint, admission)| Admitted { hint, admission }));
    are_all
}

/// Sends what came before its time into a further wait.
async fn wait_on<T>(
    worker: &Worker<T>,
    line: &mut Line,
    early: impl Iterator<Item = (Pointer, Duration)>,
) -> Result<(), Error> {
    let early: Vec<(Bucket, Pointer)> =
        early.map(|(pointer, wait)| (Bucket::for_wait(wait), pointer)).collect();
    let messages: Vec<outbox::Message> = outbox::waiting(&early).collect();
    let added = bounded(outbox::add(line.connection().await?, &messages)).await;
    line.checked(added)?;
    if let Some(queue) = &worker.queue {
        queue.announced();
    }
    Ok(())
}
