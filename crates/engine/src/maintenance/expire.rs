//! Open deliveries past their deadline become dead letters. A pass reads all open deliveries, so it rests in proportion.

use std::time::Duration;

use postrider_store::{Error, expire, lanes::Lane};
use sqlx::PgConnection;

use super::{AsyncJob, Pace, Schedule, pace};
use crate::worker::Worker;

const LIMIT: u16 = 1_000;

pub const SCHEDULE: Schedule =
    Schedule { name: "expire", lane: Lane::Background, interval: Duration::from_secs(5), rest_factor: 20 };

#[derive(Debug)]
pub struct Expire;

impl<T: Send + Sync + 'static> AsyncJob<T> for Expire {
    const READS_ALL: bool = true;

    async fn run_once(&mut self, worker: &Worker<T>, connection: &mut PgConnection) -> Result<Pace, Error> {
        let expired = expire::expire(connection, worker.audience(), LIMIT).await?;
        if expired > 0 {
            tracing::warn!(expired, "deliveries passed their deadline before they could be sent");
            metrics::counter!("postrider_expired_deliveries_total").increment(expired as u64);
        }
        Ok(pace(expired, LIMIT))
    }
}
