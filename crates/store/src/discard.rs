//! Discard: open deliveries of deleted endpoints become dead letters. Leased rows are left to whoever holds them.
//!
//! Taking skips such endpoints, so nothing here is urgent; but a delivery that waits for its next try is looked for at
//! once, in the whole queue, because no index leads to it. An endpoint counts as drained once no delivery to it is left, and
//! is never looked at again: ingest plans nothing for it, and a dead letter of a deleted endpoint is not sent again.

use postrider_core::id::EndpointId;
use sqlx::PgConnection;

use crate::error::Error;

/// Deleted endpoints that are not drained yet, at most `limit`, after `after` in the order of their ids.
pub async fn find(
    connection: &mut PgConnection,
    after: Option<EndpointId>,
    limit: u16,
) -> Result<Vec<EndpointId>, Error> {
    let ids = sqlx::query_scalar!(
        "SELECT endpoint_id FROM postrider.endpoints
          WHERE deleted_at IS NOT NULL AND drained_at IS NULL AND ($1::uuid IS NULL OR endpoint_id > $1)
          ORDER BY endpoint_id LIMIT $2",
        after.map(EndpointId::as_uuid),
        i64::from(limit),
    )
    .fetch_all(connection)
    .await?;
    Ok(ids.into_iter().map(EndpointId::from_uuid).collect())
}

/// Ends at most `limit` open deliveries of a deleted endpoint; the answer counts them.
pub async fn discard(
    connection: &mut PgConnection,
    endpoint_id: EndpointId,
    limit: u16,
) -> Result<u64, Error> {
    let done = sqlx::query!(
        r#"
        WITH open AS MATERIALIZED (
            SELECT q.ctid AS location FROM postrider.delivery_queue q
             WHERE q.endpoint_id = $1 AND q.state IN ('pending', 'scheduled', 'held')
               AND EXISTS (SELECT FROM postrider.endpoints e
                            WHERE e.endpoint_id = $1 AND e.deleted_at IS NOT NULL)
             LIMIT $2
               FOR UPDATE OF q SKIP LOCKED
        ), ended AS (
            DELETE FROM postrider.delivery_queue q USING open
             WHERE q.ctid = open.location
            RETURNING q.*
        )
        INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id,
               signing_key_id, accepted_at, ended_at, outcome, dead_reason, attempt_number)
        SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
               signing_key_id, accepted_at, now(), 'dead_lettered', 'endpoint_deleted', attempt_number
          FROM ended
        "#,
        endpoint_id.as_uuid(),
        i64::from(limit),
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

/// Notes that a deleted endpoint has no open delivery any more, not even a leased one, and takes its signing secrets away;
/// `false` if it has one.
///
/// Asked a while after the deletion: what was accepted under the plans of before is committed by then, because deleting
/// waits for it.
pub async fn drain(connection: &mut PgConnection, endpoint_id: EndpointId) -> Result<bool, Error> {
    let drained = sqlx::query_scalar!(
        r#"
        WITH drained AS MATERIALIZED (
            UPDATE postrider.endpoints SET drained_at = now()
             WHERE endpoint_id = $1 AND deleted_at IS NOT NULL AND drained_at IS NULL
               AND NOT EXISTS (SELECT FROM postrider.delivery_queue WHERE endpoint_id = $1)
            RETURNING tenant_id, endpoint_id
        ), emptied AS (
            UPDATE postrider.signing_keys AS k SET sealed_secret = NULL
              FROM drained AS d
             WHERE k.tenant_id = d.tenant_id AND k.endpoint_id = d.endpoint_id AND k.sealed_secret IS NOT NULL
        )
        SELECT count(*) AS "drained!" FROM drained
        "#,
        endpoint_id.as_uuid(),
    )
    .fetch_one(connection)
    .await?;
    Ok(drained == 1)
}
