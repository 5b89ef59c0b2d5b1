//! The oldest transaction on this database: while one is open, rows that were deleted since cannot be cleaned up, and a
//! queue whose rows live for milliseconds grows and slows down.

use std::time::Duration;

use sqlx::PgExecutor;

/// How long the oldest transaction that holds back cleaning up has been open; zero where there is none. Sessions of other
/// roles are seen only with `pg_read_all_stats`.
pub async fn age(executor: impl PgExecutor<'_>) -> Result<Duration, sqlx::Error> {
    let seconds = sqlx::query_scalar!(
        r#"
        SELECT coalesce(extract(epoch FROM clock_timestamp() - min(began)), 0)::float8 AS "seconds!"
          FROM (
            -- With neither a snapshot nor an id of its own, an open transaction holds back nothing. What cleans up does
            -- not wait for itself.
            SELECT xact_start AS began FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()
               AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
               AND backend_type <> 'autovacuum worker'
            UNION ALL
            SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()
          ) AS open
        "#
    )
    .fetch_one(executor)
    .await?;
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
