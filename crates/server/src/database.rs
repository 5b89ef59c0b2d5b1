//! Reaches a database before anything is built on it.
//!
//! Invariant: an unreachable database is named with its own error, once and soon. A pool tries again and again in silence
//! and then tells only that its time was up.

use std::{str::FromStr, time::Duration};

use anyhow::{Context, anyhow, bail};
use postrider_store::migrate;
use sqlx::{
    Connection, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::configuration::{Database, Secret, setting};

/// Longest wait for the first connection.
const FIRST_CONNECTION_LIMIT: Duration = Duration::from_secs(5);
/// Connections that a command opens.
const COMMAND_CONNECTIONS: u32 = 2;

/// Reads the URL that a variable set.
pub(crate) fn options(url: &Secret, variable: &str) -> anyhow::Result<PgConnectOptions> {
    PgConnectOptions::from_str(url.reveal())
        // A pooler knows no such parameter, and floats do not travel as text.
        .map(|options| options.extra_float_digits(None))
        .map_err(|error| anyhow!("{}", cause(&error)))
        .with_context(|| format!("{variable} cannot be used"))
}

/// Connects once and lets go again; the error says why that cannot be done. Returns how to connect.
pub(crate) async fn reach(url: &Secret, variable: &str) -> anyhow::Result<PgConnectOptions> {
    let options = options(url, variable)?;
    let place = place(&options);
    let connected = tokio::time::timeout(FIRST_CONNECTION_LIMIT, PgConnection::connect_with(&options)).await;
    match connected {
        Ok(Ok(connection)) => {
            // It served its purpose; how it ends is of no consequence.
            let _ = connection.close().await;
            Ok(options)
        }
        Ok(Err(error)) => bail!("the database of {variable} cannot be reached at {place}: {}", cause(&error)),
        Err(_) => {
            let seconds = FIRST_CONNECTION_LIMIT.as_secs();
            bail!("the database of {variable} cannot be reached at {place}: no answer within {seconds} s")
        }
    }
}

/// Reaches the database that migrations run in.
pub(crate) async fn reach_for_migrations(database: &Database) -> anyhow::Result<PgConnectOptions> {
    match &database.migration_url {
        Some(url) => reach(url, setting::MIGRATION_DATABASE_URL.variable).await,
        None => reach_directly(database).await,
    }
}

/// Reaches the database past any pooler, for what needs a session of its own or keeps one for long.
pub(crate) async fn reach_directly(database: &Database) -> anyhow::Result<PgConnectOptions> {
    let (url, setting) = database.direct();
    reach(url, setting.variable).await
}

/// Opens the database for a command that does one thing after another; its schema must be this program's.
pub(crate) async fn open_for_command(database: &Database) -> anyhow::Result<PgPool> {
    let options = reach_directly(database).await?;
    let pool = PgPoolOptions::new().max_connections(COMMAND_CONNECTIONS).connect_with(options).await;
    let pool = pool.context("the database cannot be reached")?;
    if !migrate::inspect(&pool).await?.is_current() {
        bail!("the database schema is not the one that this program needs: run `postrider migrate` first");
    }
    Ok(pool)
}

/// Without the password, which is nobody's to read in a terminal.
fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

/// The error's own words: those of the wrapping error repeat them.
fn cause(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Io(source) => source.to_string(),
        sqlx::Error::Database(source) => source.message().to_owned(),
        sqlx::Error::Tls(source) | sqlx::Error::Configuration(source) => source.to_string(),
        other => other.to_string(),
    }
}
