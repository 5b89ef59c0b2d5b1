//! Counts what tenants have open who have too much of it to be counted while others wait: on a connection of its own, one
//! tenant after the other. Meanwhile the lanes refuse the tenant's events for a moment, or go by the number that they have.

use std::{convert::Infallible, sync::Arc, time::Duration};

use postrider_store::{
    lanes::{Lane, Line},
    quota::{self, Known},
};
use sqlx::postgres::PgConnectOptions;

use crate::{clock::Clock, supervisor::Shutdown};

/// After a count that failed: the tenant's publishers ask for the next one at once.
const ERROR_PAUSE: Duration = Duration::from_secs(1);

/// Runs until the drain.
pub async fn run(
    options: PgConnectOptions,
    known: Arc<Known>,
    clock: Arc<dyn Clock>,
    shutdown: Shutdown,
) -> Result<(), Infallible> {
    // Its statement is one of theirs, too, and so is its plan. It waits longer for the tenant's row than a batch does, since
    // all that was counted would be lost with it.
    let mut line = Line::new(options, Lane::IngestAside);
    loop {
        let wanted = tokio::select! {
            wanted = known.wanted() => wanted,
            () = shutdown.draining() => return Ok(()),
        };
        let counted = tokio::select! {
            counted = async {
                match line.connection().await {
                    Ok(connection) => quota::count(connection, wanted, &known).await,
                    Err(error) => Err(error),
                }
            } => counted,
            () = shutdown.draining() => return Ok(()),
        };
        // However it went: whoever still needs it asks again.
        known.strike_off(wanted.tenant_id);
        let Err(error) = line.checked(counted) else { continue };
        if !error.is_lost() {
            let tenant_id = wanted.tenant_id;
            tracing::warn!(error = &error as &dyn std::error::Error, %tenant_id, "open deliveries cannot be counted");
        }
        tokio::select! {
            () = clock.sleep(ERROR_PAUSE) => {}
            () = shutdown.draining() => return Ok(()),
        }
    }
}
