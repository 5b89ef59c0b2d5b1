//! Replays that run: dead letters go back into the queue, endpoint by endpoint and only as fast as each takes them.
//!
//! Invariant: an endpoint has no more waiting than a few seconds' worth of what it takes, fresh events included, and never
//! more than [`MOST_REOPENED`] open deliveries that replays brought back. So a receiver that has just recovered is not
//! flooded, one that fails again is not sent a whole history, and a fresh event stands behind a bounded number. Tenants take
//! turns, and so do the endpoints of each; one that has no room holds up no other. Turns are small and each is followed by a
//! rest: what a turn writes, and what it makes ready to be sent, is in the way of everybody else's next event.

use std::time::Duration;

use postrider_core::id::{EndpointId, TenantId};
use postrider_store::{
    Error,
    lanes::Lane,
    outbox::Audience,
    replay::{self, Advanced, COUNTED, Load, Portion},
    wake::{self, Call, Caller, MAX_NAMED},
};
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::{AsyncJob, Pace, Schedule, list_ready};
use crate::worker::Worker;

/// Turns in one pass, which a rest follows, and tenants that it looks at.
const MOST_TURNS: u16 = 2;
/// After so long a pass begins no further turn: whatever makes turns slow, what follows them has its time, too, and the
/// whole is over well before the wait for the database is given up.
const LONGEST_TURNS: Duration = Duration::from_secs(2);
/// Letters in one turn, which is one transaction: what others commit meanwhile waits for what it has written.
const MOST_LETTERS: u16 = 32;
/// Requests that wait for each one that an endpoint may have in flight: with answers after 100 milliseconds they are worth
/// 0.8 seconds, with answers after a second eight.
const DEEP: u16 = 8;
/// Where an endpoint has a rate: no more wait than so many seconds' worth.
const SECONDS_OF_RATE: f64 = 4.0;
/// Most deliveries of one endpoint that wait when a replay adds to them.
const MOST_WAITING: u16 = 2_000;
/// Open deliveries that replays brought back to one endpoint, whatever they wait for: their next try, or that the endpoint
/// is enabled.
const MOST_REOPENED: u16 = 5_000;
/// Between two turns of one endpoint: while it has room; when enough wait for it; and when so much of what came back has
/// not ended that it is disabled or failing, or somebody has one of its letters locked.
const REST: Duration = Duration::from_millis(20);
const REST_WITHOUT_ROOM: Duration = Duration::from_millis(500);
const LONG_REST: Duration = Duration::from_secs(5);

/// Between two looks at what is over.
const TIDY_INTERVAL: Duration = Duration::from_secs(10);
/// Letters of replays that are over, removed in one pass.
const MOST_REMOVED: u16 = 5_000;
/// Replays that are ended in one pass.
const MOST_ENDED: u16 = 100;

const _: () = assert!(MOST_WAITING <= COUNTED && MOST_REOPENED <= COUNTED);

/// The rest leaves three quarters of the time to others.
pub const SCHEDULE: Schedule =
    Schedule { name: "replay", lane: Lane::Work, interval: Duration::from_secs(1), rest_factor: 3 };

#[derive(Debug, Default)]
pub struct Replay {
    /// The last tenant that had a turn.
    after: Option<TenantId>,
    tidied_at: Option<Duration>,
}

/// What a pass did.
#[derive(Debug, Default)]
pub struct Pass {
    pub turns: u16,
    /// Letters that were brought back or skipped.
    pub moved: u64,
    /// Endpoints that have something pending now, and since when the first of it is.
    ready: Vec<(TenantId, EndpointId)>,
    since: Option<OffsetDateTime>,
    /// What made a turn fail; the others went on.
    failure: Option<Error>,
}

impl<T: Send + Sync + 'static> AsyncJob<T> for Replay {
    async fn run_once(&mut self, worker: &Worker<T>, connection: &mut PgConnection) -> Result<Pace, Error> {
        let started = worker.clock.monotonic();
        let is_over = || worker.clock.monotonic().saturating_sub(started) >= LONGEST_TURNS;
        let pass = self.turns(connection, worker.audience(), is_over).await?;
        call_out(worker, connection, &pass).await;
        for finished in replay::finish(connection, MOST_ENDED).await? {
            tracing::info!(tenant_id = %finished.tenant_id, replay_id = %finished.id, "a replay is finished");
        }
        #[expect(clippy::cast_precision_loss, reason = "replays that run are few")]
        metrics::gauge!("postrider_replays_running").set(replay::running(connection).await? as f64);
        let has_more_to_remove = self.tidy(worker.clock.monotonic(), connection).await?;
        match pass.failure {
            Some(error) => Err(error),
            None if pass.turns >= MOST_TURNS || has_more_to_remove => Ok(Pace::More),
            None if pass.moved > 0 => Ok(Pace::Busy),
            None => Ok(Pace::Done),
        }
    }
}

impl Replay {
    /// Gives each tenant a turn, and another, until there have been enough, none has any due, or the time is over.
    pub async fn turns(
        &mut self,
        connection: &mut PgConnection,
        audience: Audience,
        is_over: impl Fn() -> bool,
    ) -> Result<Pass, Error> {
        let mut pass = Pass::default();
        let mut tenants = self.due(connection).await?;
        // Those of the first round all have their turn, unless the time is over.
        let mut is_first_round = true;
        while !tenants.is_empty() && pass.turns < MOST_TURNS {
            let mut still_due = Vec::with_capacity(tenants.len());
            for tenant_id in tenants {
                if pass.turns >= MOST_TURNS || is_over() {
                    return Ok(pass);
                }
                if is_first_round {
                    self.after = Some(tenant_id);
                }
                match turn(tenant_id, connection, audience).await {
                    Ok(Some(advanced)) => {
                        pass.note(&advanced);
                        still_due.push(tenant_id);
                    }
                    Ok(None) => {}
                    Err(error) if error.is_lost() => return Err(error),
                    // Somebody has one of its letters locked, or stores more and more of the tenant's events: it is tried
                    // again later.
                    Err(error) if error.is_lock_wait() => {
                        tracing::debug!(%tenant_id, "a replay's turn did not get its locks");
                    }
                    Err(error) => pass.failure = Some(error),
                }
            }
            tenants = still_due;
            is_first_round = false;
        }
        Ok(pass)
    }

    /// Tenants with work, after the one that was last.
    async fn due(&self, connection: &mut PgConnection) -> Result<Vec<TenantId>, Error> {
        let found = replay::due_tenants(connection, self.after, MOST_TURNS).await?;
        if found.is_empty() && self.after.is_some() {
            return replay::due_tenants(connection, None, MOST_TURNS).await;
        }
        Ok(found)
    }

    /// Whether there is more to remove.
    async fn tidy(&mut self, now: Duration, connection: &mut PgConnection) -> Result<bool, Error> {
        if self.tidied_at.is_some_and(|last| now.saturating_sub(last) < TIDY_INTERVAL) {
            return Ok(false);
        }
        replay::expire(connection, MOST_ENDED).await?;
        if replay::tidy(connection, MOST_REMOVED).await? {
            return Ok(true);
        }
        self.tidied_at = Some(now);
        Ok(false)
    }
}

async fn turn(
    tenant_id: TenantId,
    connection: &mut PgConnection,
    audience: Audience,
) -> Result<Option<Advanced>, Error> {
    let Some(step) = replay::next(connection, tenant_id).await? else { return Ok(None) };
    let turn = step.turn;
    let advanced = step.advance(audience, portion).await;
    if matches!(&advanced, Err(error) if !error.is_lost()) {
        // Else it would be the first again, and the others of its tenant would never have theirs.
        replay::postpone(connection, turn, LONG_REST).await?;
    }
    advanced.map(Some)
}

/// How many letters an endpoint may get now.
fn portion(load: Load) -> Portion {
    let deep = load.max_in_flight.saturating_mul(DEEP).min(MOST_WAITING);
    let waiting = match load.rate {
        None => deep,
        Some(rate) => {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between 1 and a bound that fits"
            )]
            let worth = (rate.per_second * SECONDS_OF_RATE).ceil().clamp(1.0, f64::from(MOST_WAITING)) as u16;
            deep.min(worth)
        }
    };
    let for_line = waiting.saturating_sub(load.pending);
    let for_all = MOST_REOPENED.saturating_sub(load.reopened);
    let letters = for_line.min(for_all).min(MOST_LETTERS);
    let rest = if letters > 0 {
        REST
    } else if for_all > 0 {
        REST_WITHOUT_ROOM
    } else {
        LONG_REST
    };
    Portion { letters, rest }
}

impl Pass {
    fn note(&mut self, advanced: &Advanced) {
        self.turns += 1;
        self.moved += u64::from(advanced.replayed) + u64::from(advanced.skipped.total());
        metrics::counter!("postrider_replayed_deliveries_total").increment(advanced.replayed.into());
        metrics::counter!("postrider_replay_skipped_deliveries_total")
            .increment(advanced.skipped.total().into());
        if let Some(since) = advanced.pending_since {
            self.since = Some(self.since.map_or(since, |first| first.min(since)));
            self.ready.push((advanced.tenant_id, advanced.endpoint_id));
        }
    }
}

/// Lets the queue bring what became pending; without one, lists it here and in other processes. Whoever does not hear it finds
/// it at the next poll.
async fn call_out<T>(worker: &Worker<T>, connection: &mut PgConnection, pass: &Pass) {
    let Some(since) = pass.since else { return };
    if let Some(queue) = worker.usable_queue() {
        // Whoever gets the messages begins, or leaves to the takers what there is no room for. Called as well, these would ask
        // for the same letters at the same time, and half of that in vain.
        queue.announced();
        return;
    }
    let mut endpoints: Vec<EndpointId> = pass.ready.iter().map(|(_, endpoint_id)| *endpoint_id).collect();
    endpoints.sort_unstable();
    endpoints.dedup();
    list_ready(worker, &endpoints, Some(since)).await;
    let caller = Caller::default();
    let calls: Vec<Call> = pass
        .ready
        .chunks(MAX_NAMED)
        .map(|endpoints| Call::At { caller, since, endpoints: endpoints.to_vec() })
        .collect();
    if let Err(error) = wake::notify(connection, &calls).await {
        tracing::debug!(%error, "other processes were not told of what a replay brought back");
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use postrider_store::endpoints::Rate;

    use super::*;

    fn load(max_in_flight: u16, rate: Option<f64>, pending: u16, reopened: u16) -> Load {
        let burst = NonZeroU32::new(1).expect("not zero");
        let rate = rate.map(|per_second| Rate { per_second, burst });
        Load { max_in_flight, rate, pending, reopened }
    }

    #[test]
    fn an_endpoint_gets_what_it_takes_in_a_few_seconds_and_no_more() {
        for (load, letters, rest) in [
            (load(32, None, 0, 0), 32, REST),
            (load(32, None, 200, 0), 32, REST),
            (load(32, None, 240, 0), 16, REST),
            (load(32, None, 256, 0), 0, REST_WITHOUT_ROOM),
            (load(32, None, 5_000, 0), 0, REST_WITHOUT_ROOM),
            (load(1, None, 0, 0), 8, REST),
            (load(1_000, None, 0, 0), 32, REST),
            (load(1_000, None, 1_990, 0), 10, REST),
            (load(u16::MAX, None, 0, 0), 32, REST),
            // A rate bounds it further.
            (load(32, Some(5.0), 0, 0), 20, REST),
            (load(32, Some(5.0), 19, 0), 1, REST),
            (load(32, Some(0.01), 0, 0), 1, REST),
            (load(32, Some(0.01), 1, 0), 0, REST_WITHOUT_ROOM),
            (load(32, Some(10_000.0), 0, 0), 32, REST),
            // What came back and has not ended yet, whatever it waits for.
            (load(32, None, 0, 4_999), 1, REST),
            (load(32, None, 0, 5_000), 0, LONG_REST),
        ] {
            assert_eq!(portion(load), Portion { letters, rest }, "{load:?}");
        }
    }
}
