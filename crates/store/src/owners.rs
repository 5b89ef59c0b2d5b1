//! The owners of a tenant, by key or by login. Invariant: a tenant always has one that can be used, or nobody could issue
//! another credential in it.
//!
//! Whoever issues or takes away a credential locks them all first, so that two who take away the last two of them do
//! not each count on the other.

use postrider_core::id::TenantId;
use sqlx::PgTransaction;

use crate::edit::Error;

/// Whether people can log in to this installation: where they cannot, a user is no owner to rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logins {
    On,
    Off,
}

/// Keeps others from issuing or taking away credentials of this tenant until the transaction ends.
pub(crate) async fn lock(transaction: &mut PgTransaction<'_>, tenant_id: TenantId) -> Result<(), Error> {
    sqlx::query!("SELECT pg_advisory_xact_lock(postrider.credentials_lock_key($1))", tenant_id.as_uuid())
        .execute(&mut **transaction)
        .await?;
    Ok(())
}

/// Refuses the change that was made in this transaction, under the lock, where it left no owner.
///
/// # Errors
/// [`Error::LastOwner`].
pub(crate) async fn require_one(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    logins: Logins,
) -> Result<(), Error> {
    let is_one_left = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM postrider.management_keys
                           WHERE tenant_id = $1 AND role = 'owner' AND revoked_at IS NULL)
               OR $2 AND EXISTS (SELECT FROM postrider.users WHERE tenant_id = $1 AND role = 'owner' AND enabled)
               AS "is_one_left!""#,
        tenant_id.as_uuid(),
        logins == Logins::On,
    )
    .fetch_one(&mut **transaction)
    .await?;
    if is_one_left { Ok(()) } else { Err(Error::LastOwner) }
}
