//! Deliveries whose lease is dead are taken back. A pass reads all open deliveries, so it runs when a process has died,
//! and else seldom, for leases past their hard limit and for this process's own that it does not know.

use std::{collections::HashSet, time::Duration};

use postrider_core::id::InstanceId;
use postrider_store::{
    Error, instances,
    lanes::{Lane, STATEMENT_TIMEOUT},
    recover,
};
use sqlx::PgConnection;

use super::{AsyncJob, Pace, Schedule, list_ready, pace};
use crate::worker::Worker;

const LIMIT: u16 = 1_000;
/// Between two passes for which no death gives a reason.
pub const ROUTINE: Duration = Duration::from_secs(10);
/// A commit that was not answered has happened, or never will, after this time.
const UNKNOWN_AFTER: Duration = STATEMENT_TIMEOUT.saturating_add(Duration::from_secs(5));

pub const SCHEDULE: Schedule =
    Schedule { name: "recover", lane: Lane::Background, interval: Duration::from_secs(1), rest_factor: 20 };

#[derive(Debug, Default)]
pub struct Recover {
    known_dead: HashSet<InstanceId>,
    last_pass: Option<Duration>,
}

impl<T: Send + Sync + 'static> AsyncJob<T> for Recover {
    const READS_ALL: bool = true;

    async fn run_once(&mut self, worker: &Worker<T>, connection: &mut PgConnection) -> Result<Pace, Error> {
        let dead = instances::dead(connection).await?;
        let now = worker.clock.monotonic();
        let is_routine = self.last_pass.is_none_or(|last| now.saturating_sub(last) >= ROUTINE);
        let has_new_dead = dead.iter().any(|id| !self.known_dead.contains(id));
        if !is_routine && !has_new_dead {
            return Ok(Pace::Done);
        }
        let life = worker.identity.life();
        let known = life.held();
        let leases = recover::Dead {
            owners: &dead,
            me: life.instance_id,
            known: &known,
            unknown_after: UNKNOWN_AFTER,
        };
        let recovered = recover::recover(connection, &leases, worker.audience(), LIMIT).await?;
        let rows = recovered.again + recovered.dead_lettered;
        if rows > 0 {
            tracing::warn!(
                again = recovered.again,
                dead_lettered = recovered.dead_lettered,
                "interrupted attempts were taken over"
            );
            metrics::counter!("postrider_attempts_total", "outcome" => "interrupted").increment(rows as u64);
            match worker.usable_queue() {
                Some(queue) => queue.announced(),
                None => list_ready(worker, &recovered.endpoints, None).await,
            }
        }
        if pace(rows, LIMIT) == Pace::More {
            return Ok(Pace::More);
        }
        instances::forget_dead(connection).await?;
        self.known_dead = dead.into_iter().collect();
        self.last_pass = Some(now);
        Ok(Pace::Done)
    }
}
