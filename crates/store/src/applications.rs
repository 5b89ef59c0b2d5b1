//! Applications: who publishes. The tenant's own application (kind `system`) is not seen by anything here.

use postrider_core::{
    id::{ApplicationId, TenantId},
    name::Name,
    pepper::Hashes,
};
use sqlx::{PgExecutor, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    edit::{self, Error},
    page::Slice,
    rotation::tokens::Choice,
    row,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Application {
    pub id: ApplicationId,
    pub name: Name,
    /// A disabled application cannot publish; what it published before is still delivered.
    pub enabled: bool,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
}

#[derive(Debug)]
pub struct NewApplication<'a> {
    pub id: ApplicationId,
    pub name: &'a Name,
    /// The keyed hash of the publish token, under each pepper that is held.
    pub token_hash: &'a Hashes,
}

struct Row {
    application_id: Uuid,
    name: String,
    enabled: bool,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

/// # Errors
/// [`Error::NameTaken`] when the tenant has an application of that name.
pub async fn create(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    application: NewApplication<'_>,
) -> Result<Application, Error> {
    edit::announce_application(transaction, tenant_id).await?;
    let token = Choice::from(application.token_hash);
    let row = sqlx::query_as!(
        Row,
        "INSERT INTO postrider.applications (tenant_id, application_id, name, kind, token_hash, pepper_generation)
         SELECT $1, $2, $3, 'publisher', token.token_hash, token.pepper_generation
           FROM postrider.token_hash_to_store($4, $5, $6) AS token
         RETURNING application_id, name, enabled, created_at, updated_at",
        tenant_id.as_uuid(),
        application.id.as_uuid(),
        application.name.as_str(),
        &token.generations,
        &token.fingerprints,
        &token.hashes,
    )
    .fetch_one(&mut **transaction)
    .await?;
    Ok(row.try_into()?)
}

pub async fn get_by_name(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    name: &Name,
) -> Result<Option<Application>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        "SELECT application_id, name, enabled, created_at, updated_at FROM postrider.applications
          WHERE tenant_id = $1 AND name = $2 AND kind = 'publisher'",
        tenant_id.as_uuid(),
        name.as_str(),
    )
    .fetch_optional(executor)
    .await?
    .map(Application::try_from)
    .transpose()
}

/// A tenant's applications, newest first, by id.
pub async fn list(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    slice: Slice,
) -> Result<Vec<Application>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        "SELECT application_id, name, enabled, created_at, updated_at FROM postrider.applications
          WHERE tenant_id = $1 AND kind = 'publisher' AND ($2::uuid IS NULL OR application_id < $2)
          ORDER BY application_id DESC LIMIT $3",
        tenant_id.as_uuid(),
        slice.before,
        slice.rows,
    )
    .fetch_all(executor)
    .await?
    .into_iter()
    .map(Application::try_from)
    .collect()
}

/// # Errors
/// [`Error::NotFound`] when the tenant has no such application.
pub async fn set_enabled(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: ApplicationId,
    enabled: bool,
) -> Result<Application, Error> {
    edit::lock_exclusive(transaction, &[id]).await?;
    let row = sqlx::query_as!(
        Row,
        "UPDATE postrider.applications SET enabled = $3, updated_at = now()
          WHERE tenant_id = $1 AND application_id = $2 AND kind = 'publisher'
         RETURNING application_id, name, enabled, created_at, updated_at",
        tenant_id.as_uuid(),
        id.as_uuid(),
        enabled,
    )
    .fetch_optional(&mut **transaction)
    .await?
    .ok_or(Error::NotFound)?;
    edit::raise_versions(transaction, tenant_id, &[id]).await?;
    Ok(row.try_into()?)
}

/// Replaces the publish token; the old one is refused from the commit on.
///
/// # Errors
/// [`Error::NotFound`] when the tenant has no such application.
pub async fn rotate_token(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: ApplicationId,
    token_hash: &Hashes,
) -> Result<Application, Error> {
    edit::lock_exclusive(transaction, &[id]).await?;
    let token = Choice::from(token_hash);
    let row = sqlx::query_as!(
        Row,
        "UPDATE postrider.applications
            SET token_hash = token.token_hash, pepper_generation = token.pepper_generation, updated_at = now()
           FROM postrider.token_hash_to_store($3, $4, $5) AS token
          WHERE tenant_id = $1 AND application_id = $2 AND kind = 'publisher'
         RETURNING application_id, name, enabled, created_at, updated_at",
        tenant_id.as_uuid(),
        id.as_uuid(),
        &token.generations,
        &token.fingerprints,
        &token.hashes,
    )
    .fetch_optional(&mut **transaction)
    .await?
    .ok_or(Error::NotFound)?;
    edit::raise_versions(transaction, tenant_id, &[id]).await?;
    Ok(row.try_into()?)
}

impl TryFrom<Row> for Application {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.application_id.into(),
            name: row::text("applications.name", &row.name)?,
            enabled: row.enabled,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
