//! What an operator should see of the database before it hurts, measured now and then on a shared connection.

use std::{convert::Infallible, sync::Arc, time::Duration};

use postrider_store::oldest_transaction;

use crate::worker::Worker;

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(5);

/// Runs until the drain.
pub async fn run<T>(worker: Arc<Worker<T>>) -> Result<(), Infallible> {
    loop {
        match oldest_transaction::age(&worker.pool).await {
            Ok(age) => metrics::gauge!("postrider_oldest_transaction_seconds").set(age.as_secs_f64()),
            // The lanes tell of a database that is away; until it is back the last value stands.
            Err(error) => tracing::debug!(%error, "the oldest transaction is not known"),
        }
        if !worker.pause(INTERVAL).await {
            return Ok(());
        }
    }
}
