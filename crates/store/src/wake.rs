//! Wake-ups between processes: "look", and nothing more. They carry no truth and may be lost or repeated.
//!
//! `NOTIFY` takes a lock on the whole database while it commits, so it is sent by itself after the work has committed,
//! never inside an ingest transaction.

use std::time::Duration;

use sqlx::{
    PgConnection, PgPool,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};

const CHANNEL: &str = "postrider_pending";
/// Longest wait for the connection that listens.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Tells every worker that something became pending.
pub async fn notify(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    // A literal: NOTIFY takes no parameters, and this is not a query whose result could be checked.
    sqlx::query("NOTIFY postrider_pending").execute(connection).await?;
    Ok(())
}

/// The same from a pool, for callers that hold no connection of their own.
pub async fn notify_from(pool: &PgPool) -> Result<(), sqlx::Error> {
    notify(&mut *pool.acquire().await?).await
}

/// Hears wake-ups on a connection of its own.
#[derive(Debug)]
pub struct Listener(PgListener);

impl Listener {
    /// Registers before it returns: what is committed afterwards is heard.
    pub async fn connect(options: PgConnectOptions) -> Result<Self, sqlx::Error> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(CONNECT_TIMEOUT)
            .connect_with(options)
            .await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(CHANNEL).await?;
        Ok(Self(listener))
    }

    /// Waits for a wake-up. `false`: the connection was lost and is registered anew; something may have been missed.
    pub async fn heard(&mut self) -> Result<bool, sqlx::Error> {
        Ok(self.0.try_recv().await?.is_some())
    }
}
