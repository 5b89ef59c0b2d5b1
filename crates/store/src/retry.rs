//! Retry by hand: one dead letter goes back into the queue under the same id.
//!
//! It moves as the letters of a replay do ([`crate::reopen`]). Its row is locked first, so of two people who ask at once one
//! gets [`Error::NotDeadLettered`].

use postrider_core::{
    id::{DeliveryId, EndpointId, TenantId},
    retry::DeadReason,
};
use sqlx::PgTransaction;

pub use crate::reopen::Ready;
use crate::reopen::{self, Letter};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no such delivery in this tenant")]
    NotFound,
    /// Open, or delivered.
    #[error("the delivery is not a dead letter")]
    NotDeadLettered,
    #[error("the delivery's endpoint was deleted")]
    EndpointDeleted,
    #[error("the registry no longer lists the delivery's application for its endpoint")]
    NotListed,
    #[error("the event's body was erased")]
    BodyGone,
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
}

/// What became of the dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retried {
    pub endpoint_id: EndpointId,
    /// `None` where the endpoint is disabled: the delivery is held until it is enabled, or its new deadline passes.
    pub ready: Option<Ready>,
}

/// Moves a dead letter back. What is ready then is announced as the change is committed
/// ([`Edit::commit_announcing`](crate::edit::Edit::commit_announcing)), or the workers are woken afterwards.
pub async fn retry(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: DeliveryId,
) -> Result<Retried, Error> {
    let Letter { dead, application_id, endpoint_id, .. } =
        lock_dead_letter(transaction, tenant_id, id).await?;
    if reopen::lock_events(transaction, tenant_id, &[id.event()]).await?.is_empty() {
        return Err(Error::BodyGone);
    }
    let terms = reopen::lock_terms(transaction, tenant_id, endpoint_id).await?;
    let terms = terms.ok_or(Error::EndpointDeleted)?;
    if !terms.lists(application_id) {
        return Err(Error::NotListed);
    }
    let ready = reopen::reopen(transaction, tenant_id, &terms, &[dead], None).await?;
    Ok(Retried { endpoint_id, ready })
}

async fn lock_dead_letter(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: DeliveryId,
) -> Result<Letter, Error> {
    let found = reopen::lock_letters(transaction, tenant_id, &[id]).await?;
    let Some(letter) = found.into_iter().next() else {
        let is_known = exists(transaction, tenant_id, id).await?;
        return Err(if is_known { Error::NotDeadLettered } else { Error::NotFound });
    };
    match letter.dead.reason {
        DeadReason::EndpointDeleted => Err(Error::EndpointDeleted),
        DeadReason::BodyGone => Err(Error::BodyGone),
        DeadReason::Rejected
        | DeadReason::AttemptsExhausted
        | DeadReason::DeadlinePassed
        | DeadReason::EndpointGone => Ok(letter),
    }
}

/// Whether there is such a delivery, open or ended.
///
/// Asked after it was not found among the dead letters: then it was open or delivered at that moment, even if it has died
/// since. One statement looks at both tables as they were at one time, so a delivery that moves between them is in one of
/// the two.
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
