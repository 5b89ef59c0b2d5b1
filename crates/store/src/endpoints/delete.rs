//! Deleting endpoints. The row stays, so that history can name it, and gives up its name, its headers and query, its
//! credential and everything that leads to it. Open deliveries are ended afterwards, in batches, and with the last of them
//! its signing secrets go: see [`crate::discard`].

use postrider_core::id::{EndpointId, TenantId};
use sqlx::PgTransaction;

use super::lock;
use crate::edit::{self, Error};

/// Deletes an endpoint and its subscriptions. From the commit on nothing new is accepted for it and nothing is claimed;
/// what was claimed before may still be sent, within the seconds that a claim is good for.
///
/// # Errors
/// [`Error::NotFound`] when the tenant has no such endpoint.
pub async fn delete(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: EndpointId,
) -> Result<(), Error> {
    let applications = lock(transaction, tenant_id, id).await?;
    sqlx::query!(
        "DELETE FROM postrider.subscriptions WHERE tenant_id = $1 AND endpoint_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .execute(&mut **transaction)
    .await?;
    sqlx::query!(
        "DELETE FROM postrider.endpoint_applications WHERE tenant_id = $1 AND endpoint_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .execute(&mut **transaction)
    .await?;
    let has_query = sqlx::query_scalar!(
        r#"UPDATE postrider.endpoints
              SET deleted_at = now(), enabled = false, disabled_reason = coalesce(disabled_reason, 'requested'),
                  sealed_headers = NULL, credential_id = NULL, version = version + 1, updated_at = now()
            WHERE tenant_id = $1 AND endpoint_id = $2 AND deleted_at IS NULL
           RETURNING sealed_query IS NOT NULL AS "has_query!""#,
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_optional(&mut **transaction)
    .await?;
    if has_query == Some(true) {
        // Only an approved endpoint has one, which the registry deletes: a tenant's request has no right to the column.
        sqlx::query!(
            "UPDATE postrider.endpoints SET sealed_query = NULL WHERE tenant_id = $1 AND endpoint_id = $2",
            tenant_id.as_uuid(),
            id.as_uuid(),
        )
        .execute(&mut **transaction)
        .await?;
    }
    edit::raise_versions(transaction, tenant_id, &applications).await
}
