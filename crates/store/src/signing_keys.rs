//! The keys that requests are signed with. A row keeps its secret for as long as a delivery may be signed with it, because a
//! delivery points at the key it was accepted under: rotation does not touch queued work, and only [`crate::discard`] takes
//! the secrets of a deleted endpoint away.

use postrider_core::{
    id::{EndpointId, SigningKeyId, TenantId},
    signature::Algorithm,
};
use sqlx::{PgExecutor, PgTransaction};

use crate::row;

#[derive(Debug, Clone, Copy)]
pub struct NewSigningKey<'a> {
    pub id: SigningKeyId,
    pub algorithm: Algorithm,
    /// The secret, sealed for the row of this key.
    pub sealed_secret: &'a [u8],
}

#[derive(Clone)]
pub struct SigningKey {
    pub id: SigningKeyId,
    pub algorithm: Algorithm,
    /// The secret, sealed for the row of this key.
    pub sealed_secret: Vec<u8>,
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A key with its secret; `None` once that was taken away.
pub async fn get(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    id: SigningKeyId,
) -> Result<Option<SigningKey>, sqlx::Error> {
    sqlx::query!(
        r#"SELECT algorithm, sealed_secret AS "sealed_secret!" FROM postrider.signing_keys
            WHERE tenant_id = $1 AND signing_key_id = $2 AND sealed_secret IS NOT NULL"#,
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_optional(executor)
    .await?
    .map(|row| {
        Ok(SigningKey {
            id,
            algorithm: row::text("algorithm", &row.algorithm)?,
            sealed_secret: row.sealed_secret,
        })
    })
    .transpose()
}

pub(crate) async fn insert(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    endpoint_id: EndpointId,
    key: NewSigningKey<'_>,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO postrider.signing_keys (tenant_id, signing_key_id, endpoint_id, algorithm, sealed_secret)
         VALUES ($1, $2, $3, $4, $5)",
        tenant_id.as_uuid(),
        key.id.as_uuid(),
        endpoint_id.as_uuid(),
        key.algorithm.as_str(),
        key.sealed_secret,
    )
    .execute(&mut **transaction)
    .await?;
    Ok(())
}
