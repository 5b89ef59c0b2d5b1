//! The taker: claims pending deliveries, fairly, under permits that were taken before. Round after round it walks the
//! endpoints known to have pending work, asks each for no more than it may send now, and claims them all in one statement.
//!
//! Invariant: a row is claimed only when its request may be sent at once, or is among the next of a quick endpoint.

use std::{collections::HashMap, sync::Arc, time::Duration};

use postrider_core::id::{EndpointId, InstanceId};
use postrider_store::{
    failpoint::{self, Point},
    lanes::{Lane, Line, bounded},
    routing::Endpoint,
    take::{self, Ask, Claimed},
};

use crate::{
    deliver::{self, Leased},
    identity::Life,
    limits::{Admission, Shortage, Source},
    ready::Turn,
    transport::Transport,
    worker::{LEASE_HARD_LIMIT, Worker, fresh_token},
};

/// Endpoints in one statement.
const ENDPOINTS_PER_ROUND: usize = 64;
/// Rows that one endpoint may give in one round, once it has shown that it has many.
const ROWS_PER_ENDPOINT: u16 = 128;
/// Rows it is asked for at first. Most endpoints have one or two, and each permit that is taken in vain costs time: with a
/// full claim's permits for each of a thousand endpoints whose retries fall due, sending stood still for milliseconds.
const FIRST_ROWS: u16 = 8;
/// A row that commits late carries an older time, by as long as its transaction took. Low-water marks lag by so much,
/// which is many times what one takes; what comes later still is found by the scout, who always looks from the beginning.
/// Not longer: while some transaction keeps dead rows, each claim steps over all that are above the mark.
const LATE_BY: Duration = Duration::from_millis(500);
/// Longest idle wait: a listed endpoint is looked at again after this time whatever was missed.
const LONGEST_WAIT: Duration = Duration::from_millis(250);
/// After a lap over a long list on which nobody could be served, so that looking does not become the main work.
const LAP_PAUSE: Duration = Duration::from_millis(5);
/// After an error of the database.
const ERROR_PAUSE: Duration = Duration::from_millis(300);

/// An endpoint's turn, and what its rows may be sent with.
struct Asked {
    turn: Turn,
    admissions: Vec<Admission>,
    shortage: Option<Shortage>,
}

/// Runs until the drain.
pub async fn run<T: Transport>(worker: Arc<Worker<T>>) -> Result<(), std::convert::Infallible> {
    // What is claimed in the last round is among the deliveries that the drain waits for.
    let _deliveries = worker.deliveries.token();
    let mut line = Line::new(worker.options.clone(), Lane::Work);
    while !worker.shutdown.is_draining() {
        if !worker.identity.life().is_beating(worker.clock.monotonic()) {
            worker.pause(ERROR_PAUSE).await;
            continue;
        }
        match round(&worker, &mut line).await {
            Ok(0) => idle(&worker).await,
            Ok(_) => {}
            Err(error) => {
                if !error.is_lost() {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "pending deliveries cannot be claimed"
                    );
                }
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

impl Error {
    fn is_lost(&self) -> bool {
        match self {
            Self::Take(error) => error.is_lost(),
            Self::Directory(error) => matches!(error, crate::directory::Error::Database(_)),
        }
    }
}

async fn idle<T>(worker: &Worker<T>) {
    let now = worker.clock.monotonic();
    match worker.ready.len() {
        0 => worker.limits.queue_is_empty(),
        1..=ENDPOINTS_PER_ROUND => {}
        _ => worker.clock.sleep(LAP_PAUSE).await,
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
async fn round<T: Transport>(worker: &Arc<Worker<T>>, line: &mut Line) -> Result<usize, Error> {
    let asked = lap(worker).await?;
    if asked.is_empty() {
        return Ok(0);
    }
    let identity = worker.identity.life();
    let asked_at = worker.clock.monotonic();
    match claim(line, &asked, identity.instance_id).await {
        Ok(claimed) => {
            failpoint::reach(Point::TakeClaimed).await;
            let count = asked.len();
            start(worker, asked, claimed, &Claim { life: identity, asked_at });
            Ok(count)
        }
        Err(error) => {
            put_back(worker, asked.into_iter().map(|asked| asked.turn));
            Err(error.into())
        }
    }
}

/// Walks the list until there are enough endpoints to ask, at most once around it.
async fn lap<T>(worker: &Worker<T>) -> Result<Vec<Asked>, Error> {
    let mut asked = Vec::new();
    let mut left = worker.ready.len();
    while left > 0 && asked.len() < ENDPOINTS_PER_ROUND {
        let count = left.min(ENDPOINTS_PER_ROUND - asked.len());
        let turns = worker.ready.next_round(count, worker.clock.monotonic());
        if turns.is_empty() {
            break;
        }
        left = left.saturating_sub(turns.len());
        match permits_for(worker, &turns).await {
            Ok(more) => asked.extend(more),
            Err(error) => {
                put_back(worker, turns.into_iter().chain(asked.into_iter().map(|asked| asked.turn)));
                return Err(error);
            }
        }
    }
    Ok(asked)
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
        let wanted = if turn.is_backlogged { ROWS_PER_ENDPOINT } else { FIRST_ROWS };
        let grant = worker.limits.acquire(endpoint, wanted, Source::Queue, now);
        let shortage = grant.shortage;
        let admissions = grant.admissions();
        if admissions.is_empty() {
            give_back(worker, turn, shortage, now);
        } else {
            asked.push(Asked { turn, admissions, shortage });
        }
    }
    Ok(asked)
}

/// Lists an endpoint again, or parks it, by what it waits for.
fn give_back<T>(worker: &Worker<T>, turn: Turn, shortage: Option<Shortage>, now: Duration) {
    match shortage {
        Some(Shortage::Rate(wait)) => worker.ready.put_back(turn, now + wait),
        Some(Shortage::Slots) | None => worker.ready.put_back(turn, Duration::ZERO),
        Some(Shortage::Endpoint) => {
            worker.ready.park(turn);
            // Its last request may have ended between the two.
            if !worker.limits.is_in_use(turn.endpoint_id) {
                worker.ready.unpark(turn.endpoint_id);
            }
        }
    }
}

async fn claim(
    line: &mut Line,
    asked: &[Asked],
    owner: InstanceId,
) -> Result<Vec<Claimed>, postrider_store::Error> {
    let asks: Vec<Ask> = asked
        .iter()
        .map(|asked| Ask {
            endpoint_id: asked.turn.endpoint_id,
            limit: u16::try_from(asked.admissions.len()).unwrap_or(ROWS_PER_ENDPOINT),
            low_water: asked.turn.low_water,
        })
        .collect();
    let lease = take::Lease { owner, token: fresh_token(), hard_limit: LEASE_HARD_LIMIT };
    let claimed = bounded(take::take(line.connection().await?, &asks, lease)).await;
    line.checked(claimed)
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
    for Asked { turn, mut admissions, shortage } in asked {
        let rows = rows.remove(&turn.endpoint_id).unwrap_or_default();
        if rows.len() == admissions.len() {
            let newest = rows.iter().map(|row| row.pending_since).max();
            let low_water = newest.map(|newest| newest - LATE_BY).max(turn.low_water);
            give_back(worker, Turn { low_water, is_backlogged: true, ..turn }, shortage, claim.asked_at);
        }
        // From the back: a permit that is given back goes to the first in line, who would give it back in turn.
        admissions.drain(rows.len().min(admissions.len())..).rev().for_each(drop);
        for (row, admission) in rows.into_iter().zip(admissions) {
            let held = claim.life.hold(row.delivery.lease_id());
            let leased = Leased::from_queue(row, claim.asked_at, held);
            worker.deliveries.spawn(deliver::deliver(Arc::clone(worker), leased, admission));
        }
    }
}

fn put_back<T>(worker: &Worker<T>, turns: impl IntoIterator<Item = Turn>) {
    for turn in turns {
        worker.ready.put_back(turn, Duration::ZERO);
    }
}
