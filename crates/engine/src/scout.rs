//! The scout: finds endpoints with pending work that this process does not know of, when it is sent and once a poll.
//!
//! It polls always, so a lost wake-up costs one poll.

use std::{sync::Arc, time::Duration};

use postrider_core::id::EndpointId;
use postrider_store::{
    lanes::{Lane, Line, bounded},
    take,
};
use tokio::sync::Notify;

use crate::worker::Worker;

/// Between two looks.
pub const POLL: Duration = Duration::from_secs(1);
/// Between two looks when it is sent again and again.
const COALESCE: Duration = Duration::from_millis(20);
/// After a look the scout rests for at least this many times as long as it took: while some transaction keeps dead rows, a
/// look steps over all of them.
const REST_FACTOR: u32 = 10;
/// But no longer than this.
const LONGEST_REST: Duration = Duration::from_secs(5);
/// Endpoints that one statement finds.
const PAGE: u16 = 500;

/// Runs until the drain.
pub async fn run<T: Send + Sync + 'static>(
    worker: Arc<Worker<T>>,
    sent: Arc<Notify>,
) -> Result<(), std::convert::Infallible> {
    let mut line = Line::new(worker.options.clone(), Lane::Work);
    while !worker.shutdown.is_draining() {
        let started = worker.clock.monotonic();
        let looked = look(&worker, &mut line).await;
        if let Err(error) = line.checked(looked)
            && !error.is_lost()
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "pending work cannot be looked for");
        }
        let took = worker.clock.monotonic().saturating_sub(started);
        if !worker.pause((took * REST_FACTOR).clamp(COALESCE, LONGEST_REST)).await {
            break;
        }
        tokio::select! {
            () = sent.notified() => {}
            () = worker.clock.sleep(POLL) => {}
            () = worker.shutdown.draining() => {}
        }
    }
    Ok(())
}

async fn look<T>(worker: &Worker<T>, line: &mut Line) -> Result<(), postrider_store::Error> {
    let open = line.connection().await?;
    let mut after: Option<EndpointId> = None;
    loop {
        let waiting = bounded(take::find_waiting(open, after, worker.grace(), PAGE)).await?;
        for found in &waiting.endpoints {
            worker.ready.add_pending(found.tenant_id, found.endpoint_id, Some(found.oldest));
        }
        after = waiting.more_after;
        if after.is_none() {
            return Ok(());
        }
    }
}
