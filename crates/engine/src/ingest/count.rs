//! Counts what tenants have open who have too much of it to be counted while others wait: on a connection of its own, one
//! tenant after the other. Meanwhile the lanes refuse the tenant's events for a moment, or go by the number that they have.

use std::{convert::Infallible, sync::Arc};

use postrider_store::{
    lanes::{Lane, Line},
    quota::{self, Known},
};
use sqlx::postgres::PgConnectOptions;

use crate::supervisor::Shutdown;

/// Runs until the drain.
pub async fn run(options: PgConnectOptions, known: Arc<Known>, shutdown: Shutdown) -> Result<(), Infallible> {
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
        if let Err(error) = line.checked(counted)
            && !error.is_lost()
        {
            let tenant_id = wanted.tenant_id;
            tracing::warn!(error = &error as &dyn std::error::Error, %tenant_id, "open deliveries cannot be counted");
        }
    }
}
