//! The reconciler: when the broker has lost its queues, every delivery that was open then is announced once more, a portion
//! at a time.

use std::time::Duration;

use postrider_core::queue::Queue as _;
use postrider_store::{
    broker_epoch,
    lanes::{Lane, Line, bounded},
};

use super::RabbitMq;

/// Deliveries in one portion.
const PORTION: u16 = 1_000;
/// Between two portions: at most so many in a second that those that come newly are not held up.
const PORTION_PAUSE: Duration = Duration::from_millis(100);
/// Between two looks whether something is to be done.
const POLL: Duration = Duration::from_secs(2);

/// Runs until the drain.
pub(super) async fn run(rabbit: &RabbitMq) {
    let mut line = Line::new(rabbit.settings.options.clone(), Lane::Background);
    let mut pause = POLL;
    while rabbit.pause(pause).await {
        pause = POLL;
        if !rabbit.is_up() {
            continue;
        }
        let swept = match line.connection().await {
            Ok(open) => bounded(broker_epoch::sweep(open, PORTION)).await,
            Err(error) => Err(error),
        };
        match line.checked(swept) {
            Ok(Some(announced)) => {
                metrics::counter!("postrider_reannounced_deliveries_total").increment(announced as u64);
                rabbit.announced();
                pause = PORTION_PAUSE;
            }
            Ok(None) => {}
            Err(error) if error.is_lost() => {}
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "open deliveries cannot be announced anew"
                );
            }
        }
    }
}
