//! Connections of the hot path: few, apart from the pool that serves queries, each with its own bounds and planner
//! settings. They need a session of their own, so they go to PostgreSQL directly and never through a pooler.

use std::time::Duration;

use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};

/// Longest wait for a lock; then the batch gives way.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest statement. A lease of a batch whose commit was not answered is judged only after this time.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Ingest. All join methods stay on: without them the key check turns quadratic.
    Ingest,
    /// Take, settle and maintenance. Every row is reached through an index; on a fresh or bloated table the planner
    /// would otherwise be lured into reading all of it.
    Work,
    /// Passes over all open deliveries, heartbeats and wake-ups.
    Background,
}

/// Opens a connection for one lane. Array statements keep one generic plan: planning them anew costs more than it gains.
pub async fn connect(options: &PgConnectOptions, lane: Lane) -> Result<PgConnection, sqlx::Error> {
    let mut settings = vec![
        ("lock_timeout", LOCK_TIMEOUT.as_millis().to_string()),
        ("statement_timeout", STATEMENT_TIMEOUT.as_millis().to_string()),
        ("idle_in_transaction_session_timeout", STATEMENT_TIMEOUT.as_millis().to_string()),
        ("jit", "off".to_owned()),
    ];
    match lane {
        Lane::Ingest => settings.push(("plan_cache_mode", "force_generic_plan".to_owned())),
        Lane::Work => {
            settings.push(("plan_cache_mode", "force_generic_plan".to_owned()));
            for planner in ["enable_seqscan", "enable_hashjoin", "enable_mergejoin"] {
                settings.push((planner, "off".to_owned()));
            }
        }
        Lane::Background => {}
    }
    PgConnection::connect_with(&options.clone().options(settings)).await
}
