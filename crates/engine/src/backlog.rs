//! Looks at how much waits to be sent, in processes that accept events, and closes the gate for those who have too much of
//! it waiting.
//!
//! Invariant: what waits is counted here and never while somebody publishes, and the counting takes a small share of the
//! database's time however much there is: first it is only asked whether there is much, and only then whose it is.

use std::{convert::Infallible, sync::Arc, time::Duration};

use postrider_core::overload::{Limit, Verdict};
use postrider_store::{
    Error,
    backlog::{self, Gate},
    lanes::{Lane, Line, bounded},
};
use sqlx::{PgConnection, postgres::PgConnectOptions};

use crate::{clock::Clock, supervisor::Shutdown};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// After a look it rests at least so many times as long as the look took: a million waiting deliveries, counted in a third
/// of a second, are counted every seven seconds.
const REST_FACTOR: u32 = 20;

/// How much may wait, and whom that keeps out.
#[derive(Debug, Clone)]
pub struct Settings {
    pub limit: Limit,
    pub gate: Arc<Gate>,
    /// Whether there is a broker for what waits in the outbox. Without one, what is left there waits for nothing.
    pub has_broker: bool,
}

/// Runs until the drain, on a connection of its own: where too much is asked of the database, this has to be known.
pub async fn run(
    settings: Settings,
    options: PgConnectOptions,
    clock: Arc<dyn Clock>,
    shutdown: Shutdown,
) -> Result<(), Infallible> {
    let mut line = Line::new(options, Lane::Background);
    let mut verdict = Verdict::default();
    loop {
        let started = clock.monotonic();
        let looked = bounded(async { look(line.connection().await?, &settings, &verdict).await }).await;
        match line.checked(looked) {
            Ok(next) => {
                tell(&verdict, &next);
                if next != verdict {
                    settings.gate.set(next.clone());
                    verdict = next;
                }
            }
            Err(error) if error.is_lost() => {}
            // What was seen last holds on.
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "what waits could not be counted");
            }
        }
        let took = clock.monotonic().saturating_sub(started);
        tokio::select! {
            () = clock.sleep(INTERVAL.max(took * REST_FACTOR)) => {}
            () = shutdown.draining() => return Ok(()),
        }
    }
}

/// Whom to refuse now, given who was refused before.
///
/// # Errors
/// As the database's.
pub async fn look(
    connection: &mut PgConnection,
    settings: &Settings,
    before: &Verdict,
) -> Result<Verdict, Error> {
    let limit = settings.limit;
    if settings.has_broker {
        // Whose deliveries they are is not written there.
        let waiting = backlog::outbox(&mut *connection, limit.deliveries()).await?.deliveries;
        let everybody = limit.judge_all(waiting, before);
        if everybody != Verdict::Nobody {
            return Ok(everybody);
        }
    }
    if !backlog::has_ready(connection, limit.reopens_below()).await? {
        return Ok(Verdict::Nobody);
    }
    Ok(limit.judge(&backlog::ready_of_tenants(connection).await?, before))
}

/// Logs that it has begun, or is over.
fn tell(before: &Verdict, now: &Verdict) {
    match (before, now) {
        (Verdict::Nobody, Verdict::Tenants(tenants)) => {
            let largest = tenants.iter().max_by_key(|(_, excess)| excess.waiting);
            let (tenant_id, waiting) =
                largest.map(|(id, excess)| (id.to_string(), excess.waiting)).unwrap_or_default();
            tracing::warn!(
                tenants = tenants.len(),
                tenant_id,
                waiting,
                "too many deliveries wait to be sent: tenants with more than their share are refused"
            );
        }
        (Verdict::Nobody, Verdict::Everybody { waiting }) => {
            tracing::warn!(waiting, "too many deliveries wait for the broker: publishers are refused");
        }
        (Verdict::Tenants(_) | Verdict::Everybody { .. }, Verdict::Nobody) => {
            tracing::info!("publishers are taken again");
        }
        (Verdict::Nobody, Verdict::Nobody)
        | (
            Verdict::Tenants(_) | Verdict::Everybody { .. },
            Verdict::Tenants(_) | Verdict::Everybody { .. },
        ) => {}
    }
}
