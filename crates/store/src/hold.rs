//! Hold and release: pending deliveries of a disabled endpoint are held, and come back when it is enabled.
//!
//! Taking already skips disabled endpoints, so this only has to catch up: it moves rows in bounded batches, however
//! many wait. The deadline runs on meanwhile.

use postrider_core::id::{EndpointId, TenantId};
use sqlx::{PgConnection, PgPool};

use crate::{
    audit::{Action, Actor, By, Change, Target},
    edit::{self, Edit},
    endpoints::{self, DisabledReason},
    error::Error,
};

/// Holds at most `limit` pending deliveries of disabled endpoints; the answer counts them.
pub async fn hold(connection: &mut PgConnection, limit: u16) -> Result<u64, Error> {
    let done = sqlx::query!(
        r#"
        WITH waiting AS MATERIALIZED (
            SELECT row.location
              FROM postrider.endpoints e CROSS JOIN LATERAL (
                   SELECT ctid AS location FROM postrider.delivery_queue
                    WHERE endpoint_id = e.endpoint_id AND state = 'pending'
                    LIMIT $1
                      FOR UPDATE SKIP LOCKED) AS row
             -- Deleted endpoints stay for ever, and where one is drained nothing is pending any more.
             WHERE NOT e.enabled AND e.drained_at IS NULL
             LIMIT $1
        )
        UPDATE postrider.delivery_queue q SET state = 'held', pending_since = NULL
          FROM waiting
         WHERE q.ctid = waiting.location
        "#,
        i64::from(limit),
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

/// Brings back at most `limit` held deliveries of enabled endpoints; the answer names the endpoints, one entry per
/// delivery.
pub async fn release(connection: &mut PgConnection, limit: u16) -> Result<Vec<EndpointId>, Error> {
    let endpoints = sqlx::query_scalar!(
        r#"
        WITH RECURSIVE holding AS (
            -- From one endpoint's first held row to the next endpoint's.
            (SELECT endpoint_id FROM postrider.delivery_queue WHERE state = 'held' ORDER BY endpoint_id LIMIT 1)
            UNION ALL
            SELECT next.endpoint_id FROM holding CROSS JOIN LATERAL (
                   SELECT endpoint_id FROM postrider.delivery_queue
                    WHERE state = 'held' AND endpoint_id > holding.endpoint_id
                    ORDER BY endpoint_id LIMIT 1) AS next
        ), freed AS MATERIALIZED (
            SELECT row.location
              FROM holding JOIN postrider.endpoints e USING (endpoint_id)
             CROSS JOIN LATERAL (
                   SELECT ctid AS location FROM postrider.delivery_queue
                    WHERE endpoint_id = e.endpoint_id AND state = 'held'
                    LIMIT $1
                      FOR UPDATE SKIP LOCKED) AS row
             WHERE e.enabled
             LIMIT $1
        )
        UPDATE postrider.delivery_queue q SET state = 'pending', pending_since = now()
          FROM freed
         WHERE q.ctid = freed.location
        RETURNING q.endpoint_id
        "#,
        i64::from(limit),
    )
    .fetch_all(connection)
    .await?;
    Ok(endpoints.into_iter().map(EndpointId::from_uuid).collect())
}

/// Disables an endpoint whose receiver answered 410 Gone, in a transaction of its own. `false` if it was disabled
/// already or has changed since the attempt saw `version`: then the answer was about something else.
pub async fn disable_gone(
    pool: &PgPool,
    tenant_id: TenantId,
    endpoint_id: EndpointId,
    version: i64,
) -> Result<bool, edit::Error> {
    let by = By { actor: Actor::Process, address: None };
    let mut edit = Edit::of_operator(pool, Some(tenant_id), by).await?;
    edit::lock_endpoint(&mut edit, tenant_id, endpoint_id).await?;
    let endpoint = sqlx::query!(
        r#"SELECT enabled AND version = $3 AS "is_unchanged!", name FROM postrider.endpoints
            WHERE tenant_id = $1 AND endpoint_id = $2"#,
        tenant_id.as_uuid(),
        endpoint_id.as_uuid(),
        version,
    )
    .fetch_one(&mut **edit)
    .await?;
    if endpoint.is_unchanged {
        endpoints::set_disabled(&mut edit, tenant_id, endpoint_id, Some(DisabledReason::Gone)).await?;
        let target = Target::new("endpoint", endpoint_id, endpoint.name);
        edit.commit(Change::whole(Action::EndpointGone, target)).await?;
    }
    Ok(endpoint.is_unchanged)
}
