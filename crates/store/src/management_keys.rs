//! Credentials for the management API. Only a keyed hash of the token is stored.

use postrider_core::{
    id::{ManagementKeyId, TenantId},
    name::Name,
    pepper::Hashes,
    role::Role,
};
use sqlx::{PgExecutor, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    audit::Actor,
    edit::{self, Error},
    owners::{self, Logins},
    page::Slice,
    rotation::tokens::Choice,
    row,
};

/// Most keys of one tenant that are not revoked.
pub const MAX_PER_TENANT: u32 = 100;
/// Revoked keys that stay listed; beyond it the ones revoked first are forgotten. The audit log remembers them.
pub const MAX_REVOKED_PER_TENANT: u32 = 100;

/// A key as it is shown: without anything of its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagementKey {
    pub id: ManagementKeyId,
    pub name: Name,
    pub role: Role,
    pub created_at: OffsetDateTime,
    /// Since when it opens nothing.
    pub revoked_at: Option<OffsetDateTime>,
}

#[derive(Debug, Clone, Copy)]
pub struct NewManagementKey<'a> {
    pub id: ManagementKeyId,
    pub name: &'a Name,
    pub role: Role,
    /// The keyed hash of the token, under each pepper that is held.
    pub token_hash: &'a Hashes,
}

struct Row {
    management_key_id: Uuid,
    name: String,
    role: String,
    created_at: OffsetDateTime,
    revoked_at: Option<OffsetDateTime>,
}

/// Whose a management credential is, and what it may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    pub tenant_id: TenantId,
    pub tenant_name: Name,
    pub role: Role,
    pub actor: Actor,
    /// Whether the token is to be stored anew: the installation has moved on from the pepper that it was found by.
    pub is_outdated: bool,
}

/// # Errors
/// [`Error::NameTaken`] when the tenant has a key of that name.
pub async fn create(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    key: NewManagementKey<'_>,
) -> Result<ManagementKey, Error> {
    let token = Choice::from(key.token_hash);
    let row = sqlx::query_as!(
        Row,
        "INSERT INTO postrider.management_keys (tenant_id, management_key_id, name, role, token_hash, pepper_generation)
         SELECT $1, $2, $3, $4, token.token_hash, token.pepper_generation
           FROM postrider.token_hash_to_store($5, $6, $7) AS token
         RETURNING management_key_id, name, role, created_at, revoked_at",
        tenant_id.as_uuid(),
        key.id.as_uuid(),
        key.name.as_str(),
        key.role.as_str(),
        &token.generations,
        &token.fingerprints,
        &token.hashes,
    )
    .fetch_one(&mut **transaction)
    .await?;
    Ok(row.try_into()?)
}

/// Adds a key to those that the tenant has.
///
/// # Errors
/// [`Error::NameTaken`] when the tenant has a key of that name, revoked or not; [`Error::LimitReached`].
pub async fn issue(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    key: NewManagementKey<'_>,
) -> Result<ManagementKey, Error> {
    owners::lock(transaction, tenant_id).await?;
    let count = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM postrider.management_keys WHERE tenant_id = $1 AND revoked_at IS NULL"#,
        tenant_id.as_uuid(),
    )
    .fetch_one(&mut **transaction)
    .await?;
    edit::require_room(count, "keys", MAX_PER_TENANT)?;
    let issued = create(transaction, tenant_id, key).await?;
    sqlx::query!(
        "DELETE FROM postrider.management_keys
          WHERE tenant_id = $1 AND management_key_id IN
                (SELECT management_key_id FROM postrider.management_keys
                  WHERE tenant_id = $1 AND revoked_at IS NOT NULL
                  ORDER BY revoked_at DESC, management_key_id DESC OFFSET $2)",
        tenant_id.as_uuid(),
        i64::from(MAX_REVOKED_PER_TENANT),
    )
    .execute(&mut **transaction)
    .await?;
    Ok(issued)
}

/// A tenant's keys, revoked ones too, newest first, by id.
pub async fn list(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    slice: Slice,
) -> Result<Vec<ManagementKey>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        "SELECT management_key_id, name, role, created_at, revoked_at FROM postrider.management_keys
          WHERE tenant_id = $1 AND ($2::uuid IS NULL OR management_key_id < $2)
          ORDER BY management_key_id DESC LIMIT $3",
        tenant_id.as_uuid(),
        slice.before,
        slice.rows,
    )
    .fetch_all(executor)
    .await?
    .into_iter()
    .map(ManagementKey::try_from)
    .collect()
}

pub async fn get_by_name(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    name: &Name,
) -> Result<Option<ManagementKey>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        "SELECT management_key_id, name, role, created_at, revoked_at FROM postrider.management_keys
          WHERE tenant_id = $1 AND name = $2",
        tenant_id.as_uuid(),
        name.as_str(),
    )
    .fetch_optional(executor)
    .await?
    .map(ManagementKey::try_from)
    .transpose()
}

/// Revokes a key; its token opens nothing from the commit on. One that is revoked stays as it is.
///
/// # Errors
/// [`Error::NotFound`] when the tenant has no such key; [`Error::LastOwner`].
pub async fn revoke(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: ManagementKeyId,
    logins: Logins,
) -> Result<ManagementKey, Error> {
    owners::lock(transaction, tenant_id).await?;
    let row = sqlx::query_as!(
        Row,
        "UPDATE postrider.management_keys SET revoked_at = COALESCE(revoked_at, now())
          WHERE tenant_id = $1 AND management_key_id = $2
         RETURNING management_key_id, name, role, created_at, revoked_at",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_optional(&mut **transaction)
    .await?
    .ok_or(Error::NotFound)?;
    owners::require_one(transaction, tenant_id, logins).await?;
    Ok(row.try_into()?)
}

/// Finds the key that a token belongs to by its hash, or while the pepper is replaced by the one under the pepper
/// before, unless it is revoked. This is how a request's tenant becomes known, so it is the one query over keys that no
/// tenant scopes.
pub async fn get_by_token_hash(
    executor: impl PgExecutor<'_>,
    token_hash: &[u8; 32],
    previous_hash: Option<&[u8; 32]>,
) -> Result<Option<Credential>, sqlx::Error> {
    let hashes: Vec<Vec<u8>> =
        std::iter::once(token_hash).chain(previous_hash).map(|hash| hash.to_vec()).collect();
    sqlx::query!(
        r#"SELECT k.tenant_id, t.name AS tenant_name, k.management_key_id, k.name, k.role,
                k.token_hash <> $2 AND k.pepper_generation <> postrider.pepper_generation() AS "is_outdated!"
           FROM postrider.management_keys AS k JOIN postrider.tenants AS t USING (tenant_id)
          WHERE k.token_hash = ANY($1) AND k.revoked_at IS NULL"#,
        &hashes,
        token_hash.as_slice(),
    )
    .fetch_optional(executor)
    .await?
    .map(|row| {
        Ok(Credential {
            tenant_id: row.tenant_id.into(),
            tenant_name: row::text("tenants.name", &row.tenant_name)?,
            role: row::text("role", &row.role)?,
            actor: Actor::ManagementKey {
                id: row.management_key_id.into(),
                name: row::text("management_keys.name", &row.name)?,
            },
            is_outdated: row.is_outdated,
        })
    })
    .transpose()
}

impl TryFrom<Row> for ManagementKey {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.management_key_id.into(),
            name: row::text("management_keys.name", &row.name)?,
            role: row::text("management_keys.role", &row.role)?,
            created_at: row.created_at,
            revoked_at: row.revoked_at,
        })
    }
}
