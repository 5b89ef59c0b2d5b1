//! Expire: open deliveries past their deadline become dead letters. Leased rows are left to whoever holds them.
//!
//! Few rows ever get here: a retry that would pass the deadline is judged when the attempt ends. What is left waited too
//! long in a backlog or behind a disabled endpoint, so no index is spent on it and the caller paces the passes.

use sqlx::PgConnection;

use crate::error::Error;

/// Ends at most `limit` deliveries; the answer counts them.
pub async fn expire(connection: &mut PgConnection, limit: u16) -> Result<u64, Error> {
    let done = sqlx::query!(
        r#"
        WITH late AS MATERIALIZED (
            SELECT ctid AS location FROM postrider.delivery_queue
             WHERE deadline_at <= now() AND state IN ('pending', 'scheduled', 'held')
             ORDER BY tenant_id, delivery_id
             LIMIT $1
               FOR UPDATE SKIP LOCKED
        ), ended AS (
            DELETE FROM postrider.delivery_queue q USING late
             WHERE q.ctid = late.location
            RETURNING q.*
        )
        INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id,
               signing_key_id, accepted_at, ended_at, outcome, dead_reason, attempt_number)
        SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
               signing_key_id, accepted_at, now(), 'dead_lettered', 'deadline_passed', attempt_number
          FROM ended
        "#,
        i64::from(limit),
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
