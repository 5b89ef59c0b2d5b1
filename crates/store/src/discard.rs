//! Discard: open deliveries of deleted endpoints become dead letters. Leased rows are left to whoever holds them.
//! A broker hears nothing of these, as it does of other dead letters: somebody chose it, and none can be sent again.
//!
//! Taking skips such endpoints, so nothing here is urgent; but a delivery that waits for its next try is looked for at
//! once, and no index leads to it. So a tenant's open deliveries are gone through in the order of the queue's key, a bounded
//! number at a time, for all its deleted endpoints together.
//!
//! Invariant: an endpoint counts as drained once a whole walk, begun after it was deleted, has left no delivery to it. None
//! comes into being meanwhile: deleting waits for what is accepted under the plans of before, ingest plans nothing for it
//! since, and a dead letter of a deleted endpoint is not sent again. A delivery keeps its place in the order for as long as
//! it is open, whatever its state, so no walk passes it by.

use std::collections::BTreeSet;

use postrider_core::id::TenantId;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::error::Error;

/// Deleted endpoints of a walk; further ones have the next.
const MAX_ENDPOINTS: i64 = 1_000;

/// On the way through what a tenant has open.
#[derive(Debug)]
pub struct Walk {
    pub tenant_id: TenantId,
    endpoints: Vec<Uuid>,
    /// Those of them to which nothing was left open so far.
    empty: BTreeSet<Uuid>,
    /// The last row that was looked at; the all-zero id before the first.
    after: Uuid,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Deliveries that were ended.
    pub ended: u64,
    /// There was nothing more to look at.
    pub is_last: bool,
}

/// Begins a walk for the next tenant, after `after`, with deleted endpoints that are not drained yet.
pub async fn begin(connection: &mut PgConnection, after: Option<TenantId>) -> Result<Option<Walk>, Error> {
    let rows = sqlx::query!(
        "SELECT tenant_id, endpoint_id FROM postrider.endpoints
          WHERE deleted_at IS NOT NULL AND drained_at IS NULL AND ($1::uuid IS NULL OR tenant_id > $1)
          ORDER BY tenant_id, endpoint_id LIMIT $2",
        after.map(TenantId::as_uuid),
        MAX_ENDPOINTS,
    )
    .fetch_all(connection)
    .await?;
    let Some(tenant_id) = rows.first().map(|row| row.tenant_id) else { return Ok(None) };
    let own = rows.iter().filter(|row| row.tenant_id == tenant_id);
    let endpoints: Vec<Uuid> = own.map(|row| row.endpoint_id).collect();
    let empty = endpoints.iter().copied().collect();
    Ok(Some(Walk { tenant_id: tenant_id.into(), endpoints, empty, after: Uuid::nil() }))
}

/// Looks at the next `limit` open deliveries of the tenant and ends those of its deleted endpoints. The last step also notes
/// which of these are drained.
pub async fn step(connection: &mut PgConnection, walk: &mut Walk, limit: u16) -> Result<Step, Error> {
    let seen = sqlx::query!(
        r#"
        WITH looked AS MATERIALIZED (
            SELECT ctid AS location, delivery_id, endpoint_id FROM postrider.delivery_queue
             WHERE tenant_id = $1 AND delivery_id > $3
             ORDER BY delivery_id LIMIT $4
        ), own AS MATERIALIZED (
            SELECT location, delivery_id, endpoint_id FROM looked WHERE endpoint_id = ANY($2)
        ), open AS MATERIALIZED (
            -- What is changed at this moment is left to the next walk.
            SELECT q.ctid AS location FROM own JOIN postrider.delivery_queue q ON q.ctid = own.location
             WHERE q.delivery_id = own.delivery_id AND q.state IN ('pending', 'scheduled', 'held')
               FOR UPDATE OF q SKIP LOCKED
        ), ended AS (
            DELETE FROM postrider.delivery_queue q USING open
             WHERE q.ctid = open.location
            RETURNING q.*
        ), written AS (
            INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id,
                   signing_key_id, accepted_at, ended_at, outcome, dead_reason, attempt_number)
            SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
                   signing_key_id, accepted_at, now(), 'dead_lettered', 'endpoint_deleted', attempt_number
              FROM ended
            RETURNING delivery_id
        )
        SELECT (SELECT count(*) FROM looked) AS "looked!", (SELECT count(*) FROM written) AS "ended!",
               (SELECT delivery_id FROM looked ORDER BY delivery_id DESC LIMIT 1) AS last,
               ARRAY(SELECT DISTINCT endpoint_id FROM own
                      WHERE delivery_id NOT IN (SELECT delivery_id FROM written)) AS "left!"
        "#,
        walk.tenant_id.as_uuid(),
        &walk.endpoints,
        walk.after,
        i64::from(limit),
    )
    .fetch_one(&mut *connection)
    .await?;
    for endpoint_id in &seen.left {
        walk.empty.remove(endpoint_id);
    }
    walk.after = seen.last.unwrap_or(walk.after);
    let is_last = seen.looked < i64::from(limit);
    if is_last {
        drain(connection, walk).await?;
    }
    Ok(Step { ended: seen.ended.unsigned_abs(), is_last })
}

/// Notes that the endpoints to which nothing is open are drained, and takes their signing secrets away.
async fn drain(connection: &mut PgConnection, walk: &Walk) -> Result<(), Error> {
    let empty: Vec<Uuid> = walk.empty.iter().copied().collect();
    if empty.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        r#"
        WITH drained AS MATERIALIZED (
            UPDATE postrider.endpoints SET drained_at = now()
             WHERE tenant_id = $1 AND endpoint_id = ANY($2) AND deleted_at IS NOT NULL AND drained_at IS NULL
            RETURNING tenant_id, endpoint_id
        )
        UPDATE postrider.signing_keys AS k SET sealed_secret = NULL
          FROM drained AS d
         WHERE k.tenant_id = d.tenant_id AND k.endpoint_id = d.endpoint_id AND k.sealed_secret IS NOT NULL
        "#,
        walk.tenant_id.as_uuid(),
        &empty,
    )
    .execute(connection)
    .await?;
    Ok(())
}
