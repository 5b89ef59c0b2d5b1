//! Due deliveries become pending.

use std::time::Duration;

use postrider_store::{Error, lanes::Lane, promote};
use sqlx::PgConnection;

use super::{AsyncJob, Pace, Schedule, list_ready, pace};
use crate::worker::Worker;

const LIMIT: u16 = 1_000;

/// The interval is how late a retry may be.
pub const SCHEDULE: Schedule =
    Schedule { name: "promote", lane: Lane::Work, interval: Duration::from_millis(250), rest_factor: 0 };

#[derive(Debug)]
pub struct Promote;

impl<T: Send + Sync + 'static> AsyncJob<T> for Promote {
    async fn run_once(&mut self, worker: &Worker<T>, connection: &mut PgConnection) -> Result<Pace, Error> {
        let promoted = promote::promote(connection, worker.grace(), LIMIT).await?;
        if !promoted.endpoints.is_empty() {
            list_ready(worker, &promoted.endpoints, promoted.pending_since).await;
        }
        match pace(promoted.rows, LIMIT) {
            Pace::Done if promoted.rows > 0 => Ok(Pace::Busy),
            pace => Ok(pace),
        }
    }
}
