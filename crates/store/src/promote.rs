//! Promote: scheduled deliveries whose time has come become pending, in batches. Until then the taking query does not
//! see them.

use std::time::Duration;

use postrider_core::id::EndpointId;
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::error::Error;

/// What one batch did.
#[derive(Debug, PartialEq, Eq)]
pub struct Promoted {
    pub rows: usize,
    /// Since when those of them are pending that are not held.
    pub pending_since: Option<OffsetDateTime>,
    /// Endpoints that now have pending work, each once.
    pub endpoints: Vec<EndpointId>,
}

/// Promotes at most `limit` deliveries that have been due for a grace period, the longest overdue first. One of a disabled
/// endpoint is held instead.
pub async fn promote(connection: &mut PgConnection, grace: Duration, limit: u16) -> Result<Promoted, Error> {
    let rows = sqlx::query!(
        r#"
        WITH due AS MATERIALIZED (
            SELECT ctid AS location FROM postrider.delivery_queue
             WHERE state = 'scheduled' AND due_at <= now() - make_interval(secs => $2)
             ORDER BY due_at
             LIMIT $1
               FOR UPDATE SKIP LOCKED
        )
        UPDATE postrider.delivery_queue q
           SET state = CASE WHEN e.enabled THEN 'pending' ELSE 'held' END,
               pending_since = CASE WHEN e.enabled THEN now() END,
               due_at = NULL
          FROM due, postrider.endpoints e
         WHERE q.ctid = due.location
           AND e.endpoint_id = q.endpoint_id
        RETURNING q.endpoint_id, q.pending_since
        "#,
        i64::from(limit),
        grace.as_secs_f64(),
    )
    .fetch_all(connection)
    .await?;
    let mut endpoints: Vec<EndpointId> =
        rows.iter().filter(|row| row.pending_since.is_some()).map(|row| row.endpoint_id.into()).collect();
    endpoints.sort_unstable();
    endpoints.dedup();
    let pending_since = rows.iter().find_map(|row| row.pending_since);
    Ok(Promoted { rows: rows.len(), pending_since, endpoints })
}
