//! Open deliveries of deleted endpoints become dead letters. A pass may read all open deliveries, so it rests in
//! proportion; where no endpoint was deleted it reads next to nothing.

use std::time::Duration;

use postrider_core::id::EndpointId;
use postrider_store::{Error, discard, lanes::Lane};
use sqlx::PgConnection;

use super::{AsyncJob, Pace, Schedule, pace};
use crate::worker::Worker;

const LIMIT: u16 = 5_000;

pub const SCHEDULE: Schedule =
    Schedule { name: "discard", lane: Lane::Background, interval: Duration::from_secs(1), rest_factor: 5 };

/// Walks the deleted endpoints one by one, so that one whose last request is still under way holds up no other.
#[derive(Debug, Default)]
pub struct Discard {
    after: Option<EndpointId>,
}

impl<T: Send + Sync + 'static> AsyncJob<T> for Discard {
    async fn run_once(&mut self, _: &Worker<T>, connection: &mut PgConnection) -> Result<Pace, Error> {
        let Some(endpoint_id) = discard::find(connection, self.after, 1).await?.into_iter().next() else {
            let is_at_end = self.after.take().is_none();
            return Ok(if is_at_end { Pace::Done } else { Pace::Busy });
        };
        let discarded = discard::discard(connection, endpoint_id, LIMIT).await?;
        if discarded > 0 {
            tracing::warn!(discarded, %endpoint_id, "deliveries ended because their endpoint was deleted");
            metrics::counter!("postrider_discarded_deliveries_total").increment(discarded);
        }
        if discarded < u64::from(LIMIT) {
            discard::drain(connection, endpoint_id).await?;
            self.after = Some(endpoint_id);
            return Ok(Pace::Busy);
        }
        Ok(pace(usize::try_from(discarded).unwrap_or(usize::MAX), LIMIT))
    }
}
