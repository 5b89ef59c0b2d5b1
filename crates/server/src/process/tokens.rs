//! Stores publish tokens under the new pepper while the pepper is replaced. Requests note which tokens they saw; this
//! writes them down apart from any request, a few at a time.

use std::{convert::Infallible, sync::Arc, time::Duration};

use postrider_core::pepper::Generation;
use postrider_engine::{clock::Clock, supervisor::Shutdown};
use postrider_store::{rotation::tokens::store_used, routing::Cache};

/// Between two looks at the tokens that were used.
const INTERVAL: Duration = Duration::from_secs(2);

/// Runs until the drain. Asks nothing of the database until a token is seen that is stored under the pepper before.
pub(super) async fn keep_up(
    routing: Arc<Cache>,
    generation: Generation,
    clock: Arc<dyn Clock>,
    shutdown: Shutdown,
) -> Result<(), Infallible> {
    loop {
        tokio::select! {
            () = shutdown.draining() => return Ok(()),
            () = clock.sleep(INTERVAL) => {}
        }
        match store_used(&routing, generation).await {
            Ok(0) => {}
            Ok(tokens) => tracing::info!(
                tokens,
                generation = generation.number,
                "tokens were stored under the new pepper"
            ),
            Err(error) => tracing::warn!(%error, "tokens could not be stored under the new pepper yet"),
        }
    }
}
