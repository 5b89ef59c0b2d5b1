//! Deliveries of disabled endpoints are held, and come back when their endpoint is enabled.

use std::time::Duration;

use postrider_store::{Error, hold, lanes::Lane};
use sqlx::PgConnection;

use super::{AsyncJob, Pace, Schedule, list_ready, pace};
use crate::worker::Worker;

const LIMIT: u16 = 1_000;

pub const SCHEDULE: Schedule =
    Schedule { name: "hold", lane: Lane::Work, interval: Duration::from_secs(1), rest_factor: 1 };

#[derive(Debug)]
pub struct Hold;

impl<T: Send + Sync + 'static> AsyncJob<T> for Hold {
    async fn run_once(&mut self, worker: &Worker<T>, connection: &mut PgConnection) -> Result<Pace, Error> {
        let held = usize::try_from(hold::hold(connection, LIMIT).await?).unwrap_or(usize::MAX);
        let mut released = hold::release(connection, LIMIT).await?;
        let count = released.len();
        released.sort_unstable();
        released.dedup();
        if !released.is_empty() {
            list_ready(worker, &released, None).await;
        }
        Ok(pace(held.max(count), LIMIT))
    }
}
