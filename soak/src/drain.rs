//! After the last fault: everything is left alone until nothing is open, and nothing may be stuck meanwhile.

use std::time::Duration;

use postrider_core::id::DeliveryId;
use postrider_engine::worker::LEASE_HARD_LIMIT;
use tokio::time::sleep;

use crate::{
    clock,
    error::Error,
    fleet::Fleet,
    queue::{Queue, STUCK_AFTER},
};

const PAUSE_BETWEEN_LOOKS: Duration = Duration::from_millis(250);
/// By then even leases that nobody took over have ended by themselves, and what is open stays open.
const LIMIT: Duration = LEASE_HARD_LIMIT.saturating_add(Duration::from_secs(30));

/// How the queue emptied.
#[derive(Debug, Default)]
pub(crate) struct Drained {
    pub(crate) took: Duration,
    /// Rows that nobody worked on though their time had come, as they were first seen.
    pub(crate) stuck: Vec<(DeliveryId, String)>,
    pub(crate) open: usize,
}

pub(crate) async fn drain(queue: &Queue, fleet: &mut Fleet) -> Result<Drained, Error> {
    let began = clock::monotonic();
    let mut drained = Drained::default();
    loop {
        fleet.look_after().await?;
        drained.took = began.elapsed();
        if drained.took > STUCK_AFTER {
            for (delivery, row) in queue.stuck().await? {
                if drained.stuck.iter().all(|(known, _)| *known != delivery) {
                    drained.stuck.push((delivery, row));
                }
            }
        }
        drained.open = queue.open().await?;
        // What is stuck is waited for no longer than what is not; where all is well, this asks for `0 <= 0`.
        if drained.open <= drained.stuck.len() || drained.took > LIMIT {
            return Ok(drained);
        }
        sleep(PAUSE_BETWEEN_LOOKS).await;
    }
}
