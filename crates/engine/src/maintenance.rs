//! Maintenance: what moves deliveries between states when no request does, and what tidies up behind them. Each job is a
//! bounded `run_once` that tells what it did, safe on all instances at once.
//!
//! | job | what it moves |
//! |---|---|
//! | [`promote`] | scheduled and due → pending |
//! | [`hold`] | pending of a disabled endpoint → held; held of an enabled one → pending |
//! | [`recover`] | leases of dead owners → pending, the attempt `interrupted` |
//! | [`replay`] | dead letters of replays that run → pending, as fast as their endpoints take them |
//! | [`expire`] | past the deadline → dead letter |
//! | [`discard`] | of a deleted endpoint → dead letter |
//! | [`upkeep`] | nothing: it keeps the queue's table and indexes small |

pub mod discard;
pub mod expire;
pub mod hold;
pub mod promote;
pub mod recover;
pub mod replay;
pub mod upkeep;

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use postrider_core::id::EndpointId;
use postrider_store::{
    Error,
    lanes::{Lane, Line, bounded},
};
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::worker::Worker;

/// What a pass means for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// The batch was full: there is more.
    More,
    /// There was something: more will follow soon.
    Busy,
    /// Everything there was is done.
    Done,
}

/// Where there is work a job looks so many times as often, so that what falls due is spread over time: sent all at once,
/// it would hold up everything else for a moment.
const BUSY_FRACTION: u32 = 8;

/// When a job runs.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    pub name: &'static str,
    pub lane: Lane,
    pub interval: Duration,
    /// After a pass the job rests for at least this many times as long as the pass took, which bounds its share of the
    /// database's time.
    pub rest_factor: u32,
}

/// Runs a job on a connection of its own until the drain.
pub async fn run<T, J>(
    worker: Arc<Worker<T>>,
    schedule: Schedule,
    mut job: J,
) -> Result<(), std::convert::Infallible>
where
    T: Send + Sync + 'static,
    J: AsyncJob<T>,
{
    let mut line = Line::new(worker.options.clone(), schedule.lane);
    loop {
        let started = worker.clock.monotonic();
        let passed = pass(&worker, &mut line, &mut job).await;
        let pace = match line.checked(passed) {
            Ok(pace) => pace,
            Err(error) => {
                if !error.is_lost() {
                    tracing::warn!(
                        job = schedule.name,
                        error = &error as &dyn std::error::Error,
                        "maintenance failed"
                    );
                }
                Pace::Done
            }
        };
        let took = worker.clock.monotonic().saturating_sub(started);
        let turns = if J::READS_ALL { worker.processes.load(Ordering::Relaxed) } else { 1 };
        let rest = took.saturating_mul(schedule.rest_factor).saturating_mul(turns);
        let wait = match pace {
            Pace::More => rest,
            Pace::Busy => rest.max(schedule.interval / BUSY_FRACTION),
            Pace::Done => rest.max(schedule.interval),
        };
        if !worker.pause(wait).await {
            return Ok(());
        }
    }
}

/// One job: a pass over at most so many rows.
pub trait AsyncJob<T>: Send + 'static {
    /// Whether a pass reads everything that is open. So does another process's: the more there are, the longer each rests.
    const READS_ALL: bool = false;

    fn run_once(
        &mut self,
        worker: &Worker<T>,
        connection: &mut PgConnection,
    ) -> impl Future<Output = Result<Pace, Error>> + Send;
}

async fn pass<T, J: AsyncJob<T>>(worker: &Worker<T>, line: &mut Line, job: &mut J) -> Result<Pace, Error> {
    bounded(job.run_once(worker, line.connection().await?)).await
}

/// Lists endpoints whose deliveries have just become pending: at the time of the database that is given, or at none
/// that is known.
async fn list_ready<T>(worker: &Worker<T>, ids: &[EndpointId], pending_since: Option<OffsetDateTime>) {
    match worker.directory.endpoints(ids).await {
        Ok(endpoints) => {
            for endpoint in endpoints {
                worker.ready.add_pending(endpoint.tenant_id, endpoint.endpoint_id, pending_since);
            }
        }
        // The scout finds them at its next look.
        Err(error) => tracing::debug!(%error, "endpoints with due work are not known yet"),
    }
}

fn pace(rows: usize, limit: u16) -> Pace {
    if rows >= usize::from(limit) { Pace::More } else { Pace::Done }
}
