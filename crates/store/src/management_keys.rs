//! Credentials for the management API. Only a keyed hash of the token is stored.

use postrider_core::{
    id::{ManagementKeyId, TenantId},
    name::Name,
    role::Role,
};
use sqlx::{PgExecutor, PgTransaction};

use crate::{edit::Error, row};

#[derive(Debug, Clone, Copy)]
pub struct NewManagementKey<'a> {
    pub id: ManagementKeyId,
    pub name: &'a Name,
    pub role: Role,
    /// The keyed hash of the token.
    pub token_hash: &'a [u8; 32],
}

/// Whose key a token is, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    pub tenant_id: TenantId,
    pub tenant_name: Name,
    pub management_key_id: ManagementKeyId,
    pub role: Role,
}

/// # Errors
/// [`Error::NameTaken`] when the tenant has a key of that name.
pub async fn create(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    key: NewManagementKey<'_>,
) -> Result<(), Error> {
    sqlx::query!(
        "INSERT INTO postrider.management_keys (tenant_id, management_key_id, name, role, token_hash)
         VALUES ($1, $2, $3, $4, $5)",
        tenant_id.as_uuid(),
        key.id.as_uuid(),
        key.name.as_str(),
        key.role.as_str(),
        key.token_hash.as_slice(),
    )
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

/// Finds the key that a token belongs to, unless it is revoked. This is how a request's tenant becomes known, so it
/// is the one query over keys that no tenant scopes.
pub async fn get_by_token_hash(
    executor: impl PgExecutor<'_>,
    token_hash: &[u8; 32],
) -> Result<Option<Credential>, sqlx::Error> {
    sqlx::query!(
        "SELECT k.tenant_id, t.name AS tenant_name, k.management_key_id, k.role
           FROM postrider.management_keys AS k JOIN postrider.tenants AS t USING (tenant_id)
          WHERE k.token_hash = $1 AND k.revoked_at IS NULL",
        token_hash.as_slice(),
    )
    .fetch_optional(executor)
    .await?
    .map(|row| {
        Ok(Credential {
            tenant_id: row.tenant_id.into(),
            tenant_name: row::text("tenants.name", &row.tenant_name)?,
            management_key_id: row.management_key_id.into(),
            role: row::text("role", &row.role)?,
        })
    })
    .transpose()
}
