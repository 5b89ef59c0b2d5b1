//! Upkeep of the queue's table and its indexes, between the looks of autovacuum: rows here live for milliseconds, so what
//! they leave behind outgrows what is there.
//!
//! Invariants:
//! - nothing here takes a lock that reading or writing rows waits for, save a truncation, which asks for it without
//!   standing in line and gives it back as soon as somebody else waits;
//! - one process at a time works, under a lock of its session ([`try_begin`], [`end`]); other work of the kind on the table,
//!   such as autovacuum, is left alone.
//!
//! These commands begin and end transactions of their own, so they can run in none, and each is sent by itself. On
//! [`Lane::Upkeep`](crate::lanes::Lane::Upkeep) each wait of theirs is bounded, and so is the whole.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};

use crate::error::Error;

/// Key of the advisory lock; any fixed number that nothing else here uses.
const LOCK_KEY: i64 = 0x706f_7374_7570_6b70;

/// The table as it is. What PostgreSQL counts lags by a second, and is an estimate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Whether this role owns the table, or acts for the one that does; without, PostgreSQL refuses all that is done here.
    pub is_owner: bool,
    /// Rows that are there.
    pub live: u64,
    /// Rows that are gone and still take up room.
    pub dead: u64,
    /// Rows deleted since PostgreSQL began to count.
    pub deleted: u64,
    pub table_bytes: u64,
    pub indexes: Vec<Index>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub name: IndexName,
    pub bytes: u64,
    /// What an interrupted rebuild left: nobody reads it, and writing rows may keep it up.
    pub is_leftover: bool,
}

/// With its schema, quoted. Only a look makes one that is not empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexName(String);

/// Whether empty pages at the end of the table go back to the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncate {
    Yes,
    No,
}

/// `false`: another process is at it. On `true` this session has the lock until [`end`].
pub async fn try_begin(connection: &mut PgConnection) -> Result<bool, Error> {
    Ok(sqlx::query_scalar!(r#"SELECT pg_try_advisory_lock($1) AS "is_ours!""#, LOCK_KEY)
        .fetch_one(connection)
        .await?)
}

/// Gives the lock back. It also ends with the session.
pub async fn end(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::query_scalar!("SELECT pg_advisory_unlock($1)", LOCK_KEY).fetch_one(connection).await?;
    Ok(())
}

/// Looks, and touches no row.
pub async fn look(connection: &mut PgConnection) -> Result<Look, Error> {
    let rows = sqlx::query!(
        r#"
        SELECT pg_has_role(t.relowner, 'USAGE') AS "is_owner!",
               -- After a crash the counters begin anew; what was last written down is there still.
               greatest(pg_stat_get_live_tuples(t.oid), t.reltuples::bigint, 0) AS "live!",
               pg_stat_get_dead_tuples(t.oid) AS "dead!",
               pg_stat_get_tuples_deleted(t.oid) AS "deleted!",
               -- Nothing is left of one that was dropped meanwhile.
               coalesce(pg_relation_size(t.oid), 0) AS "table_bytes!",
               quote_ident(n.nspname) || '.' || quote_ident(c.relname) AS "index_name!",
               coalesce(pg_relation_size(c.oid), 0) AS "index_bytes!",
               -- The names that PostgreSQL itself gives. An invalid index of another name is somebody's unfinished work.
               NOT i.indisvalid AND c.relname ~ '_cc(new|old)[0-9]*$' AS "is_leftover!"
          FROM pg_class t
          JOIN pg_index i ON i.indrelid = t.oid
          JOIN pg_class c ON c.oid = i.indexrelid
          JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE t.oid = 'postrider.delivery_queue'::regclass
         ORDER BY c.relname
        "#
    )
    .fetch_all(connection)
    .await?;
    // The table has a primary key: without a row there is no table, and nothing to do.
    let mut look =
        Look { is_owner: false, live: 0, dead: 0, deleted: 0, table_bytes: 0, indexes: Vec::new() };
    for row in rows {
        look.is_owner = row.is_owner;
        look.live = row.live.unsigned_abs();
        look.dead = row.dead.unsigned_abs();
        look.deleted = row.deleted.unsigned_abs();
        look.table_bytes = row.table_bytes.unsigned_abs();
        look.indexes.push(Index {
            name: IndexName(row.index_name),
            bytes: row.index_bytes.unsigned_abs(),
            is_leftover: row.is_leftover,
        });
    }
    Ok(look)
}

/// Whether a transaction that began longer ago than this is open and would be waited for: it has a snapshot or an id, or
/// has touched the table. Sessions of other roles are seen only with `pg_read_all_stats`.
pub async fn is_held_up(connection: &mut PgConnection, age: Duration) -> Result<bool, Error> {
    Ok(sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM pg_stat_activity a
             WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
               AND a.xact_start < clock_timestamp() - make_interval(secs => $1)
               -- The snapshot of an autovacuum is not waited for, its lock is.
               AND (a.backend_type = 'client backend' AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
                    OR EXISTS (SELECT FROM pg_locks l
                                WHERE l.pid = a.pid AND l.relation = 'postrider.delivery_queue'::regclass))
        ) AS "is_held_up!"
        "#,
        age.as_secs_f64(),
    )
    .fetch_one(connection)
    .await?)
}

/// Frees the room of dead rows, in the table and its indexes, for others. Does nothing where autovacuum is at it, or where
/// this role may not.
pub async fn vacuum(connection: &mut PgConnection, truncate: Truncate) -> Result<(), Error> {
    let statement = match truncate {
        Truncate::Yes => "VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE ON) postrider.delivery_queue",
        Truncate::No => "VACUUM (SKIP_LOCKED, INDEX_CLEANUP ON, TRUNCATE OFF) postrider.delivery_queue",
    };
    // Not checked at compile time, as it has neither parameters nor a result.
    sqlx::raw_sql(statement).execute(connection).await?;
    Ok(())
}

/// Builds an index anew beside the old one, which serves until then. Waits for transactions that were open before;
/// [`Error::Contended`] where one stays open: then something is left over, of the new index or of the old.
pub async fn rebuild(connection: &mut PgConnection, index: &IndexName) -> Result<(), Error> {
    run(connection, "REINDEX INDEX CONCURRENTLY", index).await
}

/// Drops what a rebuild left over. Waits for transactions that have touched the table, as [`rebuild`] does.
pub async fn drop_leftover(connection: &mut PgConnection, index: &IndexName) -> Result<(), Error> {
    run(connection, "DROP INDEX CONCURRENTLY IF EXISTS", index).await
}

async fn run(connection: &mut PgConnection, command: &str, IndexName(name): &IndexName) -> Result<(), Error> {
    // A name cannot be a parameter; this one is PostgreSQL's own spelling.
    sqlx::raw_sql(AssertSqlSafe(format!("{command} {name}"))).execute(connection).await?;
    Ok(())
}

impl std::fmt::Display for IndexName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}
