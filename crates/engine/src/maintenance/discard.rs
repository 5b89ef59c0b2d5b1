//! Open deliveries of deleted endpoints become dead letters. A walk reads all that their tenant has open, a bounded number
//! at a time, and rests in proportion; where no endpoint was deleted it reads next to nothing.

use std::time::Duration;

use postrider_core::id::TenantId;
use postrider_store::{
    Error,
    discard::{self, Walk},
    lanes::Lane,
};
use sqlx::PgConnection;

use super::{AsyncJob, Pace, Schedule};
use crate::worker::Worker;

/// Open deliveries that a pass looks at.
const LIMIT: u16 = 5_000;

pub const SCHEDULE: Schedule =
    Schedule { name: "discard", lane: Lane::Work, interval: Duration::from_secs(1), rest_factor: 5 };

/// Walks one tenant after the other, so that one whose last request is still under way holds up no other.
#[derive(Debug, Default)]
pub struct Discard {
    walk: Option<Walk>,
    after: Option<TenantId>,
}

impl<T: Send + Sync + 'static> AsyncJob<T> for Discard {
    async fn run_once(&mut self, _: &Worker<T>, connection: &mut PgConnection) -> Result<Pace, Error> {
        if self.walk.is_none() {
            self.walk = discard::begin(connection, self.after).await?;
        }
        let Some(walk) = &mut self.walk else {
            let is_at_end = self.after.take().is_none();
            return Ok(if is_at_end { Pace::Done } else { Pace::Busy });
        };
        let step = discard::step(connection, walk, LIMIT).await?;
        if step.ended > 0 {
            let (discarded, tenant_id) = (step.ended, walk.tenant_id);
            tracing::warn!(discarded, %tenant_id, "deliveries ended because their endpoints were deleted");
            metrics::counter!("postrider_discarded_deliveries_total").increment(discarded);
        }
        if !step.is_last {
            return Ok(Pace::More);
        }
        self.after = self.walk.take().map(|walk| walk.tenant_id);
        Ok(Pace::Busy)
    }
}
