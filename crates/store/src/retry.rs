//! Retry by hand: one dead letter goes back into the queue under the same id.
//!
//! Its attempt budget and deadline restart, its attempts are numbered on, and requests are signed under the endpoint's
//! current key. The row moves from history to queue in one statement that names the state it comes from, so of two
//! people who ask at once one gets [`Error::NotDeadLettered`].

use postrider_core::{
    id::{DeliveryId, EndpointId, TenantId},
    retry::DeadReason,
};
use sqlx::PgTransaction;
use uuid::Uuid;

use crate::deliveries::dead_reason;

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
    /// The endpoint is disabled: the delivery is held until it is enabled, or its new deadline passes.
    pub held: bool,
}

/// Moves a dead letter back. After the commit, wake the workers.
pub async fn retry(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: DeliveryId,
) -> Result<Retried, Error> {
    let endpoint_id = lock_dead_letter(transaction, tenant_id, id).await?;
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
    requeue(transaction, tenant_id, id, endpoint_id).await
}

async fn lock_dead_letter(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: DeliveryId,
) -> Result<Uuid, Error> {
    let ended = sqlx::query!(
        "SELECT endpoint_id, dead_reason FROM postrider.deliveries
          WHERE tenant_id = $1 AND delivery_id = $2 FOR UPDATE",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_optional(&mut **transaction)
    .await?;
    let Some(ended) = ended else {
        // A later statement: it also sees a row that another retry has just moved into the queue.
        let open = sqlx::query_scalar!(
            "SELECT delivery_id FROM postrider.delivery_queue WHERE tenant_id = $1 AND delivery_id = $2",
            tenant_id.as_uuid(),
            id.as_uuid(),
        )
        .fetch_optional(&mut **transaction)
        .await?;
        return Err(open.map_or(Error::NotFound, |_| Error::NotDeadLettered));
    };
    match ended.dead_reason.as_deref().map(dead_reason).transpose()? {
        None => Err(Error::NotDeadLettered),
        Some(DeadReason::EndpointDeleted) => Err(Error::EndpointDeleted),
        Some(DeadReason::BodyGone) => Err(Error::BodyGone),
        Some(
            DeadReason::Rejected
            | DeadReason::AttemptsExhausted
            | DeadReason::DeadlinePassed
            | DeadReason::EndpointGone,
        ) => Ok(ended.endpoint_id),
    }
}

async fn requeue(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: DeliveryId,
    endpoint_id: Uuid,
) -> Result<Retried, Error> {
    let endpoint = sqlx::query!(
        "SELECT enabled, signing_key_id, max_age_seconds FROM postrider.endpoints
          WHERE tenant_id = $1 AND endpoint_id = $2 FOR SHARE",
        tenant_id.as_uuid(),
        endpoint_id,
    )
    .fetch_optional(&mut **transaction)
    .await?
    .ok_or(Error::EndpointDeleted)?;
    let moved = sqlx::query!(
        r#"
        WITH ended AS (
            DELETE FROM postrider.deliveries
             WHERE tenant_id = $1 AND delivery_id = $2 AND outcome = 'dead_lettered'
            RETURNING tenant_id, delivery_id, event_id, application_id, endpoint_id, accepted_at, attempt_number
        )
        INSERT INTO postrider.delivery_queue
               (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at,
                deadline_at, state, pending_since, attempt_number, tries)
        SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id, $3, accepted_at,
               statement_timestamp() + make_interval(secs => $4),
               CASE WHEN $5 THEN 'pending' ELSE 'held' END, CASE WHEN $5 THEN statement_timestamp() END,
               attempt_number, 0
          FROM ended
        "#,
        tenant_id.as_uuid(),
        id.as_uuid(),
        endpoint.signing_key_id,
        f64::from(endpoint.max_age_seconds),
        endpoint.enabled,
    )
    .execute(&mut **transaction)
    .await?;
    if moved.rows_affected() != 1 {
        return Err(Error::NotDeadLettered);
    }
    Ok(Retried { endpoint_id: endpoint_id.into(), held: !endpoint.enabled })
}
