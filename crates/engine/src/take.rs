//! The taker: claims pending deliveries, fairly, under permits that were taken before.
//!
//! Invariant: a row is claimed only when its request may be sent at once. Round after round it walks the endpoints known
//! to have pending work, asks each for no more than it may send now, and claims them all in one statement.

use std::{collections::HashMap, sync::Arc, time::Duration};

use postrider_core::id::{EndpointId, InstanceId};
use postrider_store::{
    lanes::{self, Lane},
    routing::Endpoint,
    take::{self, Ask, Claimed},
};
use sqlx::PgConnection;

use crate::{
    deliver::{self, Leased},
    identity::Life,
    limits::{Permit, Shortage, Source},
    ready::Turn,
    transport::Transport,
    worker::{LEASE_HARD_LIMIT, Worker, fresh_token},
};

/// Endpoints in one statement.
const ENDPOINTS_PER_ROUND: usize = 64;
/// Rows that one endpoint may give in one round.
const ROWS_PER_ENDPOINT: u16 = 32;
/// Longest idle wait: a listed endpoint is looked at again after this time whatever was missed.
const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// After an error of the database.
const ERROR_PAUSE: Duration = Duration::from_millis(300);

/// An endpoint's turn with the permits it got.
struct Asked {
    turn: Turn,
    permits: Vec<Permit>,
    shortage: Option<Shortage>,
}

/// Runs until the drain.
pub async fn run<T: Transport>(worker: Arc<Worker<T>>) -> Result<(), std::convert::Infallible> {
    let mut connection = None;
    while !worker.shutdown.is_draining() {
        match round(&worker, &mut connection).await {
            Ok(0) => idle(&worker).await,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "pending deliveries cannot be claimed"
                );
                connection = None;
                worker.pause(ERROR_PAUSE).await;
            }
        }
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the queue cannot be read")]
    Take(#[from] postrider_store::Error),
    #[error("endpoints cannot be read")]
    Directory(#[from] crate::directory::Error),
}

async fn idle<T>(worker: &Worker<T>) {
    let now = worker.clock.monotonic();
    if worker.ready.is_empty() {
        worker.limits.queue_is_empty();
    }
    let wait =
        worker.ready.wait(now).filter(|wait| !wait.is_zero()).unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT);
    tokio::select! {
        () = worker.ready.added() => {}
        () = worker.limits.freed(), if !worker.ready.is_empty() => {}
        () = worker.clock.sleep(wait) => {}
        () = worker.shutdown.draining() => {}
    }
}

/// One round; the answer counts the endpoints that were asked.
async fn round<T: Transport>(
    worker: &Arc<Worker<T>>,
    connection: &mut Option<PgConnection>,
) -> Result<usize, Error> {
    let turns = worker.ready.next_round(ENDPOINTS_PER_ROUND, worker.clock.monotonic());
    if turns.is_empty() {
        return Ok(0);
    }
    let asked = match permits_for(worker, &turns).await {
        Ok(asked) => asked,
        Err(error) => {
            put_back(worker, turns);
            return Err(error);
        }
    };
    if asked.is_empty() {
        return Ok(0);
    }
    let life = worker.identity.life();
    let asked_at = worker.clock.monotonic();
    match claim(worker, connection, &asked, life.instance_id).await {
        Ok(claimed) => {
            let count = asked.len();
            start(worker, asked, claimed, &Claim { life, asked_at });
            Ok(count)
        }
        Err(error) => {
            put_back(worker, asked.into_iter().map(|asked| asked.turn));
            Err(error.into())
        }
    }
}

/// Takes permits for each turn, the tenant with the fewest requests in flight first. Turns that get none go back.
async fn permits_for<T>(worker: &Worker<T>, turns: &[Turn]) -> Result<Vec<Asked>, Error> {
    let ids: Vec<EndpointId> = turns.iter().map(|turn| turn.endpoint_id).collect();
    let endpoints = worker.directory.endpoints(&ids).await?;
    let by_id: HashMap<EndpointId, &Arc<Endpoint>> =
        endpoints.iter().map(|endpoint| (endpoint.endpoint_id, endpoint)).collect();
    let mut turns: Vec<Turn> = turns.to_vec();
    turns.sort_by_key(|turn| worker.limits.tenant_load(turn.tenant_id));
    let mut asked = Vec::with_capacity(turns.len());
    for turn in turns {
        // An endpoint that is gone has no turn; its deliveries end at their deadline.
        let Some(endpoint) = by_id.get(&turn.endpoint_id) else { continue };
        let now = worker.clock.monotonic();
        let grant = worker.limits.acquire(endpoint, ROWS_PER_ENDPOINT, Source::Queue, now);
        if grant.permits.is_empty() {
            worker.ready.put_back(turn, not_before(grant.shortage, now));
        } else {
            asked.push(Asked { turn, permits: grant.permits, shortage: grant.shortage });
        }
    }
    Ok(asked)
}

fn not_before(shortage: Option<Shortage>, now: Duration) -> Duration {
    match shortage {
        Some(Shortage::Rate(wait)) => now + wait,
        Some(Shortage::Busy) | None => Duration::ZERO,
    }
}

async fn claim<T>(
    worker: &Worker<T>,
    connection: &mut Option<PgConnection>,
    asked: &[Asked],
    owner: InstanceId,
) -> Result<Vec<Claimed>, postrider_store::Error> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(lanes::connect(&worker.options, Lane::Work).await?),
    };
    let asks: Vec<Ask> = asked
        .iter()
        .map(|asked| Ask {
            endpoint_id: asked.turn.endpoint_id,
            limit: u16::try_from(asked.permits.len()).unwrap_or(ROWS_PER_ENDPOINT),
            low_water: asked.turn.low_water,
        })
        .collect();
    take::take(open, &asks, take::Lease { owner, token: fresh_token(), hard_limit: LEASE_HARD_LIMIT }).await
}

/// In whose name rows were claimed, and the monotonic time just before they were asked for.
struct Claim {
    life: Arc<Life>,
    asked_at: Duration,
}

/// Sends what was claimed, and puts endpoints back that may have more.
fn start<T: Transport>(worker: &Arc<Worker<T>>, asked: Vec<Asked>, claimed: Vec<Claimed>, claim: &Claim) {
    let mut rows: HashMap<EndpointId, Vec<Claimed>> = HashMap::with_capacity(asked.len());
    for row in claimed {
        rows.entry(row.endpoint_id).or_default().push(row);
    }
    for Asked { turn, permits, shortage } in asked {
        let rows = rows.remove(&turn.endpoint_id).unwrap_or_default();
        if rows.len() == permits.len() {
            // A row that commits late may carry an older time, by the longest transaction at most.
            let newest = rows.iter().map(|row| row.pending_since).max();
            let low_water = newest.map(|newest| newest - lanes::STATEMENT_TIMEOUT).max(turn.low_water);
            worker.ready.put_back(Turn { low_water, ..turn }, not_before(shortage, claim.asked_at));
        }
        for (row, permit) in rows.into_iter().zip(permits) {
            let held = claim.life.hold(row.delivery.run.id);
            let leased = Leased::from_queue(row, claim.asked_at, held, permit);
            worker.deliveries.spawn(deliver::deliver(Arc::clone(worker), leased));
        }
    }
}

fn put_back<T>(worker: &Worker<T>, turns: impl IntoIterator<Item = Turn>) {
    for turn in turns {
        worker.ready.put_back(turn, Duration::ZERO);
    }
}
