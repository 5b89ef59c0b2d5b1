//! The reconciler: when the broker has lost its queues, every delivery that was open then is announced once more, a portion
//! at a time; and while it takes nothing, the outbox is kept small.

use std::time::Duration;

use postrider_core::queue::Queue as _;
use postrider_store::{
    Error, broker_epoch,
    lanes::{Lane, Line, bounded},
    outbox::{self, Patience},
};

use super::RabbitMq;

/// Deliveries in one portion.
const PORTION: u16 = 1_000;
/// Between two portions: at most so many in a second that those that come newly are not held up.
const PORTION_PAUSE: Duration = Duration::from_millis(100);
/// Between two looks whether something is to be done.
const POLL: Duration = Duration::from_secs(2);
/// What a message to workers says the table has told by then, and dead letters are in the database anyway. Each bounds what
/// an outage leaves in the outbox, be the broker away or there and confirming nothing.
const PATIENCE: Patience =
    Patience { for_workers: Duration::from_secs(60), for_people: Duration::from_secs(3_600) };

/// Runs until the drain.
pub(super) async fn run(rabbit: &RabbitMq) {
    let mut line = Line::new(rabbit.settings.options.clone(), Lane::Background);
    let mut pause = POLL;
    while rabbit.pause(pause).await {
        let done = tidy(rabbit, &mut line).await;
        pause = match line.checked(done) {
            Ok(true) => PORTION_PAUSE,
            Ok(false) => POLL,
            Err(error) => {
                if !error.is_lost() {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the outbox cannot be put in order"
                    );
                }
                POLL
            }
        };
    }
}

/// `true`: there may be more to do.
async fn tidy(rabbit: &RabbitMq, line: &mut Line) -> Result<bool, Error> {
    let is_full = forget(line).await?;
    let is_sweeping = rabbit.is_publishing() && sweep(rabbit, line).await?;
    Ok(is_full || is_sweeping)
}

/// Announces a portion anew; `true`: there may be more.
async fn sweep(rabbit: &RabbitMq, line: &mut Line) -> Result<bool, Error> {
    let Some(announced) = bounded(broker_epoch::sweep(line.connection().await?, PORTION)).await? else {
        return Ok(false);
    };
    metrics::counter!("postrider_reannounced_deliveries_total").increment(announced as u64);
    rabbit.announced();
    Ok(true)
}

/// Keeps the outbox from growing as long as an outage lasts; `true`: there may be more.
async fn forget(line: &mut Line) -> Result<bool, Error> {
    let forgotten = bounded(outbox::forget(line.connection().await?, PATIENCE, PORTION)).await?;
    metrics::counter!("postrider_outbox_given_up_total").increment(forgotten);
    Ok(forgotten == u64::from(PORTION))
}
