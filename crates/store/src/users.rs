//! Users: people who log in. What is shown of one never holds the password's hash; only [`account`], which the login asks,
//! reads it, and a tenant's requests could not.

use postrider_core::{
    email::Email,
    id::{TenantId, UserId},
    password::Hash,
    role::Role,
    session::Session,
};
use sqlx::{PgExecutor, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    audit::Actor,
    edit::{self, Error},
    management_keys::Credential,
    owners::{self, Logins},
    page::Slice,
    row,
};

/// Most users of one tenant.
pub const MAX_PER_TENANT: u32 = 1_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub id: UserId,
    pub email: Email,
    pub role: Role,
    /// A disabled user cannot log in, and sessions begun before are over.
    pub enabled: bool,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
}

#[derive(Debug)]
pub struct NewUser<'a> {
    pub id: UserId,
    pub email: &'a Email,
    pub role: Role,
    pub password_hash: &'a Hash,
}

/// What to change; `None` keeps what is there.
#[derive(Debug, Default)]
pub struct Changes<'a> {
    pub role: Option<Role>,
    pub enabled: Option<bool>,
    pub password_hash: Option<&'a Hash>,
}

/// What a login needs to know of whoever has an address.
#[derive(Debug)]
pub struct Account {
    pub tenant_id: TenantId,
    pub user_id: UserId,
    pub enabled: bool,
    pub password_hash: Hash,
    pub credential_version: i64,
}

struct Row {
    user_id: Uuid,
    email: String,
    role: String,
    enabled: bool,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

/// # Errors
/// [`Error::EmailTaken`] when a user of this or another tenant has the address; [`Error::LimitReached`].
pub async fn create(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    user: NewUser<'_>,
) -> Result<User, Error> {
    owners::lock(transaction, tenant_id).await?;
    let count = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM postrider.users WHERE tenant_id = $1"#,
        tenant_id.as_uuid(),
    )
    .fetch_one(&mut **transaction)
    .await?;
    edit::require_room(count, "users", MAX_PER_TENANT)?;
    let row = sqlx::query_as!(
        Row,
        "INSERT INTO postrider.users (tenant_id, user_id, email, role, password_hash) VALUES ($1, $2, $3, $4, $5)
         RETURNING user_id, email, role, enabled, created_at, updated_at",
        tenant_id.as_uuid(),
        user.id.as_uuid(),
        user.email.as_str(),
        user.role.as_str(),
        user.password_hash.to_stored(),
    )
    .fetch_one(&mut **transaction)
    .await?;
    Ok(row.try_into()?)
}

pub async fn get(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    id: UserId,
) -> Result<Option<User>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        "SELECT user_id, email, role, enabled, created_at, updated_at FROM postrider.users
          WHERE tenant_id = $1 AND user_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_optional(executor)
    .await?
    .map(User::try_from)
    .transpose()
}

/// A tenant's users, newest first, by id.
pub async fn list(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    slice: Slice,
) -> Result<Vec<User>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        "SELECT user_id, email, role, enabled, created_at, updated_at FROM postrider.users
          WHERE tenant_id = $1 AND ($2::uuid IS NULL OR user_id < $2)
          ORDER BY user_id DESC LIMIT $3",
        tenant_id.as_uuid(),
        slice.before,
        slice.rows,
    )
    .fetch_all(executor)
    .await?
    .into_iter()
    .map(User::try_from)
    .collect()
}

/// Whoever replaces a password, or disables a user, ends that user's sessions with the commit.
///
/// # Errors
/// [`Error::NotFound`] when the tenant has no such user; [`Error::LastOwner`].
pub async fn update(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: UserId,
    changes: Changes<'_>,
    logins: Logins,
) -> Result<User, Error> {
    owners::lock(transaction, tenant_id).await?;
    if let Some(hash) = changes.password_hash {
        sqlx::query!(
            "UPDATE postrider.users SET password_hash = $3, credential_version = credential_version + 1
              WHERE tenant_id = $1 AND user_id = $2",
            tenant_id.as_uuid(),
            id.as_uuid(),
            hash.to_stored(),
        )
        .execute(&mut **transaction)
        .await?;
    }
    let row = sqlx::query_as!(
        Row,
        "UPDATE postrider.users
            SET role = COALESCE($3, role), enabled = COALESCE($4, enabled), updated_at = now(),
                credential_version = credential_version + (enabled AND NOT COALESCE($4, enabled))::integer
          WHERE tenant_id = $1 AND user_id = $2
         RETURNING user_id, email, role, enabled, created_at, updated_at",
        tenant_id.as_uuid(),
        id.as_uuid(),
        changes.role.map(Role::as_str),
        changes.enabled,
    )
    .fetch_optional(&mut **transaction)
    .await?
    .ok_or(Error::NotFound)?;
    owners::require_one(transaction, tenant_id, logins).await?;
    Ok(row.try_into()?)
}

/// Replaces the password of somebody who has proven the one before, and ends the user's sessions. Nothing happens, and the
/// answer is false, where the account is no longer as it was then.
pub async fn replace_password(
    transaction: &mut PgTransaction<'_>,
    account: &Account,
    password_hash: &Hash,
) -> Result<bool, Error> {
    let replaced = sqlx::query!(
        "UPDATE postrider.users
            SET password_hash = $4, credential_version = credential_version + 1, updated_at = now()
          WHERE tenant_id = $1 AND user_id = $2 AND credential_version = $3 AND enabled",
        account.tenant_id.as_uuid(),
        account.user_id.as_uuid(),
        account.credential_version,
        password_hash.to_stored(),
    )
    .execute(&mut **transaction)
    .await?;
    Ok(replaced.rows_affected() == 1)
}

/// # Errors
/// [`Error::NotFound`] when the tenant has no such user; [`Error::LastOwner`].
pub async fn delete(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: UserId,
    logins: Logins,
) -> Result<(), Error> {
    owners::lock(transaction, tenant_id).await?;
    let deleted = sqlx::query!(
        "DELETE FROM postrider.users WHERE tenant_id = $1 AND user_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .execute(&mut **transaction)
    .await?;
    if deleted.rows_affected() != 1 {
        return Err(Error::NotFound);
    }
    owners::require_one(transaction, tenant_id, logins).await
}

/// The account of an address, for the login alone: no tenant is known yet, so none scopes this.
pub async fn account(executor: impl PgExecutor<'_>, email: &Email) -> Result<Option<Account>, sqlx::Error> {
    let found = sqlx::query!(
        "SELECT tenant_id, user_id, enabled, password_hash, credential_version FROM postrider.users WHERE email = $1",
        email.as_str(),
    )
    .fetch_optional(executor)
    .await?;
    Ok(found.map(|row| Account {
        tenant_id: row.tenant_id.into(),
        user_id: row.user_id.into(),
        enabled: row.enabled,
        password_hash: Hash::from_stored(row.password_hash),
        credential_version: row.credential_version,
    }))
}

/// Whose session it is and what that user may do now; `None` if the user is gone or disabled, or has got another password
/// since. This is how a request's tenant becomes known, so no tenant scopes it.
pub async fn get_by_session(
    executor: impl PgExecutor<'_>,
    session: Session,
) -> Result<Option<Credential>, sqlx::Error> {
    sqlx::query!(
        "SELECT u.tenant_id, t.name AS tenant_name, u.email, u.role
           FROM postrider.users AS u JOIN postrider.tenants AS t USING (tenant_id)
          WHERE u.user_id = $1 AND u.credential_version = $2 AND u.enabled",
        session.user_id.as_uuid(),
        session.credential_version,
    )
    .fetch_optional(executor)
    .await?
    .map(|row| {
        Ok(Credential {
            tenant_id: row.tenant_id.into(),
            tenant_name: row::text("tenants.name", &row.tenant_name)?,
            role: row::text("users.role", &row.role)?,
            actor: Actor::User { id: session.user_id, email: row.email },
            is_outdated: false,
        })
    })
    .transpose()
}

impl TryFrom<Row> for User {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.user_id.into(),
            email: row::text("users.email", &row.email)?,
            role: row::text("users.role", &row.role)?,
            enabled: row.enabled,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
