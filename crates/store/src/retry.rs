//! Retry by hand: one dead letter goes back into the queue under the same id.
//!
//! What a replay restarts and what goes on is decided by [`DeadLettered::replay`]; requests are signed under the
//! endpoint's current key. The row moves from history to queue in one statement that names the state it comes from, so of two
//! people who ask at once one gets [`Error::NotDeadLettered`].

use postrider_core::{
    delivery::{DeadLettered, Pending, Run},
    id::{DeliveryId, EndpointId, TenantId},
    retry::DeadReason,
};
use sqlx::PgTransaction;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{deliveries::dead_reason, endpoints::PolicyColumns, row};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no such delivery in this tenant")]
    NotFound,
    /// Open, or delivered.
    #[error("the delivery is not a dead letter")]
    NotDeadLettered,
    #[error("the delivery's endpoint was deleted")]
    EndpointDeleted,
    #[error("the event's body was erased")]
    BodyGone,
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
}

/// What became of the dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retried {
    pub endpoint_id: EndpointId,
    /// `None` where the endpoint is disabled: the delivery is held until it is enabled, or its new deadline passes.
    pub pending_since: Option<OffsetDateTime>,
}

/// Moves a dead letter back. After the commit, wake the workers.
pub async fn retry(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: DeliveryId,
) -> Result<Retried, Error> {
    let (dead, endpoint_id) = lock_dead_letter(transaction, tenant_id, id).await?;
    // Retention locks the event too: whoever comes second sees what the first has done.
    let event = sqlx::query_scalar!(
        "SELECT event_id FROM postrider.events WHERE tenant_id = $1 AND event_id = $2 FOR KEY SHARE",
        tenant_id.as_uuid(),
        id.event().as_uuid(),
    )
    .fetch_optional(&mut **transaction)
    .await?;
    if event.is_none() {
        return Err(Error::BodyGone);
    }
    requeue(transaction, tenant_id, dead, endpoint_id).await
}

async fn lock_dead_letter(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: DeliveryId,
) -> Result<(DeadLettered, Uuid), Error> {
    let ended = sqlx::query!(
        "SELECT endpoint_id, dead_reason, attempt_number FROM postrider.deliveries
          WHERE tenant_id = $1 AND delivery_id = $2 FOR UPDATE",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_optional(&mut **transaction)
    .await?;
    let Some(ended) = ended else {
        let was_open = exists(transaction, tenant_id, id).await?;
        return Err(if was_open { Error::NotDeadLettered } else { Error::NotFound });
    };
    match ended.dead_reason.as_deref().map(dead_reason).transpose()? {
        None => Err(Error::NotDeadLettered),
        Some(DeadReason::EndpointDeleted) => Err(Error::EndpointDeleted),
        Some(DeadReason::BodyGone) => Err(Error::BodyGone),
        Some(
            reason @ (DeadReason::Rejected
            | DeadReason::AttemptsExhausted
            | DeadReason::DeadlinePassed
            | DeadReason::EndpointGone),
        ) => {
            let attempt_number = row::number("attempt_number", ended.attempt_number)?;
            Ok((DeadLettered { id, attempt_number, reason }, ended.endpoint_id))
        }
    }
}

/// Whether there is such a delivery, open or ended.
///
/// Asked after it was not found in history: then it was open at that moment, even if it has ended since. One statement
/// looks at both tables as they were at one time, so a delivery that moves between them is in one of the two.
async fn exists(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: DeliveryId,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM postrider.delivery_queue WHERE tenant_id = $1 AND delivery_id = $2)
               OR EXISTS (SELECT FROM postrider.deliveries WHERE tenant_id = $1 AND delivery_id = $2) AS "exists!""#,
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_one(&mut **transaction)
    .await
}

async fn requeue(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    dead: DeadLettered,
    endpoint_id: Uuid,
) -> Result<Retried, Error> {
    // The time is the statement's, not the transaction's: what came before may have waited for a lock.
    let endpoint = sqlx::query!(
        r#"SELECT enabled, signing_key_id, max_attempts, max_age_seconds, initial_delay_ms, max_delay_ms,
                  statement_timestamp() AS "now!"
             FROM postrider.endpoints
            WHERE tenant_id = $1 AND endpoint_id = $2 FOR SHARE"#,
        tenant_id.as_uuid(),
        endpoint_id,
    )
    .fetch_optional(&mut **transaction)
    .await?
    .ok_or(Error::EndpointDeleted)?;
    let columns = PolicyColumns {
        max_attempts: endpoint.max_attempts,
        max_age_seconds: endpoint.max_age_seconds,
        initial_delay_ms: endpoint.initial_delay_ms,
        max_delay_ms: endpoint.max_delay_ms,
    };
    let Pending { run: Run { id, attempt_number, tries, deadline } } =
        dead.replay(&columns.policy()?, endpoint.now);
    let moved = sqlx::query!(
        r#"
        WITH ended AS (
            DELETE FROM postrider.deliveries
             WHERE tenant_id = $1 AND delivery_id = $2 AND outcome = 'dead_lettered'
            RETURNING tenant_id, delivery_id, event_id, application_id, endpoint_id, accepted_at
        )
        INSERT INTO postrider.delivery_queue
               (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at,
                deadline_at, state, pending_since, attempt_number, tries)
        SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id, $3, accepted_at,
               $4, CASE WHEN $5 THEN 'pending' ELSE 'held' END, CASE WHEN $5 THEN $6::timestamptz END, $7, $8
          FROM ended
        "#,
        tenant_id.as_uuid(),
        id.as_uuid(),
        endpoint.signing_key_id,
        deadline,
        endpoint.enabled,
        endpoint.now,
        row::number::<i32, _>("attempt_number", attempt_number)?,
        i32::from(tries),
    )
    .execute(&mut **transaction)
    .await?;
    if moved.rows_affected() != 1 {
        return Err(Error::NotDeadLettered);
    }
    Ok(Retried { endpoint_id: endpoint_id.into(), pending_since: endpoint.enabled.then_some(endpoint.now) })
}
