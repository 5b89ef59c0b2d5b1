//! The pool that requests are answered from, also where a pooler lies before PostgreSQL.
//!
//! A pooler in transaction mode gives each transaction some session, and a session what somebody else left in it. A
//! statement by itself is two transactions to it: one that prepares, and one that runs what was prepared, elsewhere.
//!
//! Invariant: behind such a pooler whoever takes a connection finds a transaction begun on it, in a session without
//! prepared statements. A transaction of one's own begins within that one, and commits it. What is not in one is
//! committed when the connection is given back, which is after the statement has returned: so what changes anything is
//! in a transaction of its own.

use std::time::Duration;

use sqlx::{
    PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

/// How the connections of the pool reach PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Each keeps its session, or the pooler makes it look so: prepared statements are there as long as the connection.
    KeepsStatements,
    /// By a pooler that gives each transaction a session that may be another one.
    ForgetsStatements,
}

/// How long a request waits for a connection before it is answered `503`.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);

/// Begins a transaction, after the session has forgotten what others prepared in it. That is in a transaction of its own,
/// since the isolation of the next can be chosen only while it has seen nothing; in one message with it, so that both
/// are in one session. Beginning within a transaction is what callers do here, and nothing to warn of.
const BEGIN: &str = "BEGIN; DEALLOCATE ALL; COMMIT; BEGIN; SET LOCAL client_min_messages = error";
/// Commits what was begun; where that has ended, an empty transaction.
const COMMIT: &str = "BEGIN; COMMIT";

/// Opens a pool that goes a way to a database. Proves that there is one.
pub async fn open(way: Way, max_connections: u32, database: PgConnectOptions) -> Result<PgPool, sqlx::Error> {
    let pool = PgPoolOptions::new().max_connections(max_connections).acquire_timeout(ACQUIRE_TIMEOUT);
    let pool = match way {
        Way::KeepsStatements => pool.connect_lazy_with(database),
        Way::ForgetsStatements => pool
            .after_connect(|connection, _| Box::pin(run(connection, BEGIN)))
            // Beginning proves that the connection lives.
            .test_before_acquire(false)
            .before_acquire(|connection, _| Box::pin(async { run(connection, BEGIN).await.map(|()| true) }))
            .after_release(|connection, _| Box::pin(async { commit(connection).await.map(|()| true) }))
            .connect_lazy_with(database.statement_cache_capacity(0)),
    };
    // A pool that connects at once would put the connection aside with what was begun on it.
    drop(pool.acquire().await?);
    Ok(pool)
}

async fn run(connection: &mut PgConnection, statements: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(statements).execute(connection).await.map(|_| ())
}

async fn commit(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    match run(connection, COMMIT).await {
        // A statement has failed, and its transaction with it.
        Err(sqlx::Error::Database(_)) => run(connection, "ROLLBACK").await,
        committed => committed,
    }
}
