//! Credentials of approved vendors: what an endpoint's requests carry so that the vendor takes them.
//!
//! Values stand here sealed and are opened only where requests are made. A credential's row is locked before the rows of
//! the endpoints that name it, which come before applications as in every edit: whoever names a credential locks it
//! first ([`share_by_name`]), so that one that is being replaced or deleted is waited for.

use postrider_core::{
    credential::Kind,
    id::{CredentialId, EndpointId, TenantId},
    name::Name,
};
use sqlx::{PgExecutor, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    edit::{self, Error},
    owners,
    page::Slice,
    row,
};

/// Most credentials of one tenant.
pub const MAX_PER_TENANT: u32 = 500;
/// Most endpoints that a read names beside a credential.
pub const MAX_ENDPOINTS_NAMED: u32 = 100;

/// A credential as a read shows it: without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    pub id: CredentialId,
    pub name: Name,
    pub kind: Kind,
    /// The first [`MAX_ENDPOINTS_NAMED`] endpoints that name it, by name.
    pub endpoints: Vec<Name>,
    /// How many endpoints name it.
    pub endpoint_count: i64,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
}

/// A credential's value, sealed for its row.
#[derive(Clone)]
pub struct Sealed {
    pub id: CredentialId,
    pub name: Name,
    pub kind: Kind,
    /// Rises with every replacement.
    pub version: i64,
    pub sealed_value: Vec<u8>,
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("Sealed");
        shown.field("id", &self.id).field("kind", &self.kind).field("version", &self.version);
        shown.finish_non_exhaustive()
    }
}

/// A value to store.
#[derive(Debug, Clone, Copy)]
pub struct NewValue<'a> {
    pub kind: Kind,
    /// Sealed for the row of its credential.
    pub sealed_value: &'a [u8],
}

/// Creates a credential.
///
/// # Errors
/// [`Error::NameTaken`] when the tenant has a credential of that name; [`Error::LimitReached`] when it has
/// [`MAX_PER_TENANT`].
pub async fn create(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: CredentialId,
    name: &Name,
    value: NewValue<'_>,
) -> Result<Credential, Error> {
    // The lock of whatever opens something: nobody else creates one meanwhile.
    owners::lock(transaction, tenant_id).await?;
    let count = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM postrider.credentials WHERE tenant_id = $1"#,
        tenant_id.as_uuid(),
    )
    .fetch_one(&mut **transaction)
    .await?;
    edit::require_room(count, "credentials of this tenant", MAX_PER_TENANT)?;
    sqlx::query!(
        "INSERT INTO postrider.credentials (tenant_id, credential_id, name, kind, sealed_value)
         VALUES ($1, $2, $3, $4, $5)",
        tenant_id.as_uuid(),
        id.as_uuid(),
        name.as_str(),
        value.kind.as_str(),
        value.sealed_value,
    )
    .execute(&mut **transaction)
    .await?;
    get_by_name(&mut **transaction, tenant_id, name).await?.ok_or(Error::NotFound)
}

/// Locks a credential that is to be replaced or deleted, until the transaction ends.
///
/// # Errors
/// [`Error::NotFound`] when the tenant has no such credential.
pub async fn lock_by_name(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    name: &Name,
) -> Result<CredentialId, Error> {
    let id = sqlx::query_scalar!(
        "SELECT credential_id FROM postrider.credentials WHERE tenant_id = $1 AND name = $2 FOR UPDATE",
        tenant_id.as_uuid(),
        name.as_str(),
    )
    .fetch_optional(&mut **transaction)
    .await?;
    id.map(CredentialId::from_uuid).ok_or(Error::NotFound)
}

/// Reads a credential that an endpoint is to name, and keeps it as it is until the transaction ends. Call it before the
/// endpoint is locked.
pub async fn share_by_name(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    name: &Name,
) -> Result<Option<Sealed>, Error> {
    let row = sqlx::query_as!(
        SealedRow,
        "SELECT credential_id, name, kind, version, sealed_value FROM postrider.credentials
          WHERE tenant_id = $1 AND name = $2 FOR SHARE",
        tenant_id.as_uuid(),
        name.as_str(),
    )
    .fetch_optional(&mut **transaction)
    .await?;
    Ok(row.map(Sealed::try_from).transpose()?)
}

/// The newest value of a credential.
pub async fn get(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    id: CredentialId,
) -> Result<Option<Sealed>, sqlx::Error> {
    sqlx::query_as!(
        SealedRow,
        "SELECT credential_id, name, kind, version, sealed_value FROM postrider.credentials
          WHERE tenant_id = $1 AND credential_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_optional(executor)
    .await?
    .map(Sealed::try_from)
    .transpose()
}

/// Locks the endpoints that name a credential, sorted, until the transaction ends. Call it with the credential locked, or
/// another may come to name it.
pub async fn lock_endpoints(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: CredentialId,
) -> Result<Vec<Naming>, Error> {
    let rows = sqlx::query!(
        "SELECT endpoint_id, name, sealed_headers FROM postrider.endpoints
          WHERE tenant_id = $1 AND credential_id = $2 ORDER BY endpoint_id FOR UPDATE",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_all(&mut **transaction)
    .await?;
    let naming = rows.into_iter().map(|row| {
        Ok(Naming {
            id: row.endpoint_id.into(),
            name: row::text("endpoints.name", &row.name)?,
            sealed_headers: row.sealed_headers,
        })
    });
    Ok(naming.collect::<Result<_, sqlx::Error>>()?)
}

/// An endpoint that names a credential.
#[derive(Clone)]
pub struct Naming {
    pub id: EndpointId,
    pub name: Name,
    /// Its custom headers, among which there may be one that the credential sets, too.
    pub sealed_headers: Option<Vec<u8>>,
}

impl std::fmt::Debug for Naming {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Naming").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Replaces a credential's value. Every process sends the new one from the next attempt on: the versions of the endpoints
/// that name it rise, and those of the plans that may lead to them.
///
/// # Errors
/// [`Error::NotFound`] when the tenant has no such credential.
pub async fn replace(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: CredentialId,
    endpoints: &[Naming],
    value: NewValue<'_>,
) -> Result<(), Error> {
    let endpoint_ids: Vec<Uuid> = endpoints.iter().map(|naming| naming.id.as_uuid()).collect();
    let applications = edit::applications_of_all(transaction, tenant_id, &endpoint_ids).await?;
    edit::lock_exclusive(transaction, &applications).await?;
    let replaced = sqlx::query!(
        "UPDATE postrider.credentials SET kind = $3, sealed_value = $4, version = version + 1, updated_at = now()
          WHERE tenant_id = $1 AND credential_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
        value.kind.as_str(),
        value.sealed_value,
    )
    .execute(&mut **transaction)
    .await?;
    if replaced.rows_affected() == 0 {
        return Err(Error::NotFound);
    }
    sqlx::query!(
        "UPDATE postrider.endpoints SET version = version + 1 WHERE tenant_id = $1 AND endpoint_id = ANY($2)",
        tenant_id.as_uuid(),
        &endpoint_ids,
    )
    .execute(&mut **transaction)
    .await?;
    edit::raise_versions(transaction, tenant_id, &applications).await
}

/// Deletes a credential that no endpoint names.
///
/// # Errors
/// [`Error::CredentialInUse`]; [`Error::NotFound`] when the tenant has no such credential.
pub async fn delete(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: CredentialId,
) -> Result<(), Error> {
    let deleted = sqlx::query!(
        "DELETE FROM postrider.credentials WHERE tenant_id = $1 AND credential_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .execute(&mut **transaction)
    .await?;
    if deleted.rows_affected() == 0 { Err(Error::NotFound) } else { Ok(()) }
}

/// A credential without its value.
pub async fn get_by_name(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    name: &Name,
) -> Result<Option<Credential>, sqlx::Error> {
    let found = select(executor, tenant_id, Some(name), Slice { before: None, rows: 1 }).await?;
    Ok(found.into_iter().next())
}

/// A tenant's credentials, newest first, by id.
pub async fn list(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    slice: Slice,
) -> Result<Vec<Credential>, sqlx::Error> {
    select(executor, tenant_id, None, slice).await
}

async fn select(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    name: Option<&Name>,
    slice: Slice,
) -> Result<Vec<Credential>, sqlx::Error> {
    sqlx::query!(
        r#"SELECT c.credential_id, c.name, c.kind, c.created_at, c.updated_at,
                  named.names AS "endpoints!", named.count AS "endpoint_count!"
             FROM postrider.credentials AS c
            CROSS JOIN LATERAL (
                  SELECT coalesce((array_agg(e.name ORDER BY e.name))[:$5::bigint::integer], '{}') AS names,
                         count(*) AS count
                    FROM postrider.endpoints AS e
                   WHERE e.tenant_id = c.tenant_id AND e.credential_id = c.credential_id) AS named
            WHERE c.tenant_id = $1
              AND ($2::text IS NULL OR c.name = $2)
              AND ($3::uuid IS NULL OR c.credential_id < $3)
            ORDER BY c.credential_id DESC LIMIT $4"#,
        tenant_id.as_uuid(),
        name.map(Name::as_str),
        slice.before,
        slice.rows,
        i64::from(MAX_ENDPOINTS_NAMED),
    )
    .fetch_all(executor)
    .await?
    .into_iter()
    .map(|row| {
        let endpoints = row.endpoints.iter().map(|name| row::text("endpoints.name", name));
        Ok(Credential {
            id: row.credential_id.into(),
            name: row::text("credentials.name", &row.name)?,
            kind: row::text("credentials.kind", &row.kind)?,
            endpoints: endpoints.collect::<Result<_, _>>()?,
            endpoint_count: row.endpoint_count,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    })
    .collect()
}

struct SealedRow {
    credential_id: Uuid,
    name: String,
    kind: String,
    version: i64,
    sealed_value: Vec<u8>,
}

impl TryFrom<SealedRow> for Sealed {
    type Error = sqlx::Error;

    fn try_from(row: SealedRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.credential_id.into(),
            name: row::text("credentials.name", &row.name)?,
            kind: row::text("credentials.kind", &row.kind)?,
            version: row.version,
            sealed_value: row.sealed_value,
        })
    }
}
