//! Endpoints: destinations with a URL, and how requests to them are made.
//!
//! Every change raises the endpoint's own version and makes the plans of all applications that may reach it stale.

mod columns;
mod delete;
mod read;
mod settings;

use postrider_core::{
    id::{ApplicationId, EndpointId, SigningKeyId, TenantId},
    name::Name,
    signature::Algorithm,
};
use sqlx::PgTransaction;
use time::OffsetDateTime;

pub(crate) use columns::{Columns, Plain, PolicyColumns};
pub use delete::delete;
pub(crate) use read::list_approved;
pub use read::{get_by_name, list};
pub use settings::{Rate, Settings};

use crate::{
    edit::{self, Error},
    signing_keys::{self, NewSigningKey},
};

/// Most endpoints of one tenant: all of them are in memory wherever its test events are sent from.
pub const MAX_PER_TENANT: u32 = 10_000;

#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    pub id: EndpointId,
    pub name: Name,
    /// Why no requests are made; `None` while the endpoint is enabled.
    pub disabled: Option<DisabledReason>,
    pub settings: Settings,
    /// The name of the credential that the settings say.
    pub credential: Option<Name>,
    /// Given by the registry, which then alone says what the settings are.
    pub approval: Option<Approval>,
    pub signing_key_id: SigningKeyId,
    pub algorithm: Algorithm,
    pub previous_key: Option<PreviousKey>,
    pub version: i64,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
}

/// That the operator's registry declares an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Approval {
    /// The version that last changed the endpoint.
    pub registry_version: i64,
    pub allows_query: bool,
}

/// Why an endpoint is disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisabledReason {
    /// A person asked for it.
    Requested,
    /// The receiver answered 410 Gone.
    Gone,
}

/// The key before the current one: until the overlap ends, requests are signed under it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreviousKey {
    pub id: SigningKeyId,
    pub overlap_until: OffsetDateTime,
}

#[derive(Debug)]
pub struct NewEndpoint<'a> {
    pub id: EndpointId,
    pub name: &'a Name,
    pub settings: &'a Settings,
    pub approval: Option<Approval>,
    pub key: NewSigningKey<'a>,
}

/// Locks the plans that a new endpoint changes, which whoever changes the tenant's policy locks, too. Nobody subscribes to it
/// yet; only the tenant's own application can reach it.
pub async fn lock_plans_of_new(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: EndpointId,
) -> Result<Vec<ApplicationId>, Error> {
    let applications = edit::applications_of(transaction, tenant_id, id).await?;
    edit::lock_exclusive(transaction, &applications).await?;
    Ok(applications)
}

/// Creates an endpoint with its first signing key.
///
/// # Errors
/// [`Error::NameTaken`] when the tenant has an endpoint of that name; [`Error::LimitReached`] when it has
/// [`MAX_PER_TENANT`].
pub async fn create(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    endpoint: NewEndpoint<'_>,
) -> Result<Endpoint, Error> {
    let applications = lock_plans_of_new(transaction, tenant_id, endpoint.id).await?;
    require_room(transaction, tenant_id).await?;
    let columns = Columns::of(endpoint.settings)?;
    sqlx::query!(
        "INSERT INTO postrider.endpoints
                (tenant_id, endpoint_id, name, signing_key_id, url, sealed_headers, timeout_ms, max_in_flight,
                 rate_per_second, rate_burst, max_attempts, max_age_seconds, initial_delay_ms, max_delay_ms,
                 method, success_codes, credential_id)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
        tenant_id.as_uuid(),
        endpoint.id.as_uuid(),
        endpoint.name.as_str(),
        endpoint.key.id.as_uuid(),
        endpoint.settings.url,
        endpoint.settings.sealed_headers.as_deref(),
        columns.timeout_ms,
        columns.max_in_flight,
        columns.rate_per_second,
        columns.rate_burst,
        columns.retry.max_attempts,
        columns.retry.max_age_seconds,
        columns.retry.initial_delay_ms,
        columns.retry.max_delay_ms,
        columns.method,
        columns.success_codes,
        columns.credential_id,
    )
    .execute(&mut **transaction)
    .await?;
    if let Some(approval) = endpoint.approval {
        approve(transaction, tenant_id, endpoint.id, approval, endpoint.settings).await?;
    }
    signing_keys::insert(transaction, tenant_id, endpoint.id, endpoint.key).await?;
    edit::raise_versions(transaction, tenant_id, &applications).await?;
    read::get(&mut **transaction, tenant_id, endpoint.id).await?.ok_or(Error::NotFound)
}

/// Reads an endpoint and keeps it from changing until the transaction ends; the start of every edit.
pub async fn lock_by_name(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    name: &Name,
) -> Result<Endpoint, Error> {
    let endpoint = get_by_name(&mut **transaction, tenant_id, name).await?.ok_or(Error::NotFound)?;
    edit::lock_endpoint(transaction, tenant_id, endpoint.id).await?;
    // It may have changed before the lock came.
    read::get(&mut **transaction, tenant_id, endpoint.id).await?.ok_or(Error::NotFound)
}

/// Replaces the settings, and for the registry what it says of the endpoint: `None` leaves that as it is, and the URL's
/// query with it.
///
/// # Errors
/// [`Error::NotFound`] when the tenant has no such endpoint.
pub async fn update(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: EndpointId,
    settings: &Settings,
    approval: Option<Approval>,
) -> Result<Endpoint, Error> {
    let applications = lock(transaction, tenant_id, id).await?;
    let columns = Columns::of(settings)?;
    sqlx::query!(
        "UPDATE postrider.endpoints
            SET url = $3, sealed_headers = $4, timeout_ms = $5, max_in_flight = $6, rate_per_second = $7,
                rate_burst = $8, max_attempts = $9, max_age_seconds = $10, initial_delay_ms = $11,
                max_delay_ms = $12, method = $13, success_codes = $14, credential_id = $15,
                version = version + 1, updated_at = now()
          WHERE tenant_id = $1 AND endpoint_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
        settings.url,
        settings.sealed_headers.as_deref(),
        columns.timeout_ms,
        columns.max_in_flight,
        columns.rate_per_second,
        columns.rate_burst,
        columns.retry.max_attempts,
        columns.retry.max_age_seconds,
        columns.retry.initial_delay_ms,
        columns.retry.max_delay_ms,
        columns.method,
        columns.success_codes,
        columns.credential_id,
    )
    .execute(&mut **transaction)
    .await?;
    if let Some(approval) = approval {
        approve(transaction, tenant_id, id, approval, settings).await?;
    }
    edit::raise_versions(transaction, tenant_id, &applications).await?;
    read::get(&mut **transaction, tenant_id, id).await?.ok_or(Error::NotFound)
}

/// Disables an endpoint for a reason, or enables it (`None`). An endpoint that is disabled already keeps its reason.
///
/// Open deliveries are held, or released, by the maintenance that follows.
///
/// # Errors
/// [`Error::NotFound`] when the tenant has no such endpoint.
pub async fn set_disabled(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: EndpointId,
    reason: Option<DisabledReason>,
) -> Result<Endpoint, Error> {
    let applications = lock(transaction, tenant_id, id).await?;
    sqlx::query!(
        "UPDATE postrider.endpoints
            SET enabled = $3::text IS NULL,
                disabled_reason = CASE WHEN $3 IS NULL THEN NULL ELSE coalesce(disabled_reason, $3) END,
                version = version + 1, updated_at = now()
          WHERE tenant_id = $1 AND endpoint_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
        reason.map(DisabledReason::as_str),
    )
    .execute(&mut **transaction)
    .await?;
    edit::raise_versions(transaction, tenant_id, &applications).await?;
    read::get(&mut **transaction, tenant_id, id).await?.ok_or(Error::NotFound)
}

/// Until when the last rotation still promises the key before the current one to receivers, by the database's clock;
/// `None` once that is over. A rotation before then gives the promised key up, so ask with the endpoint locked.
pub async fn overlap_running(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: EndpointId,
) -> Result<Option<OffsetDateTime>, Error> {
    let until = sqlx::query_scalar!(
        r#"SELECT overlap_until AS "overlap_until!" FROM postrider.endpoints
            WHERE tenant_id = $1 AND endpoint_id = $2 AND overlap_until > now()"#,
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_optional(&mut **transaction)
    .await?;
    Ok(until)
}

/// Makes `key` the current signing key. For `overlap_seconds` requests are also signed under the key it replaces; a
/// key that was still overlapping before is given up: see [`overlap_running`]. Queued deliveries keep the key they were accepted under.
///
/// # Errors
/// [`Error::NotFound`] when the tenant has no such endpoint.
pub async fn rotate_secret(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: EndpointId,
    key: NewSigningKey<'_>,
    overlap_seconds: u32,
) -> Result<Endpoint, Error> {
    let applications = lock(transaction, tenant_id, id).await?;
    signing_keys::insert(transaction, tenant_id, id, key).await?;
    sqlx::query!(
        "UPDATE postrider.endpoints
            SET signing_key_id = $3,
                previous_signing_key_id = CASE WHEN $4 > 0::float8 THEN signing_key_id END,
                overlap_until = CASE WHEN $4 > 0::float8 THEN now() + make_interval(secs => $4) END,
                version = version + 1, updated_at = now()
          WHERE tenant_id = $1 AND endpoint_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
        key.id.as_uuid(),
        f64::from(overlap_seconds),
    )
    .execute(&mut **transaction)
    .await?;
    edit::raise_versions(transaction, tenant_id, &applications).await?;
    read::get(&mut **transaction, tenant_id, id).await?.ok_or(Error::NotFound)
}

/// Writes what the registry alone may say. A tenant's request has no right to these columns, so that no mistake in one
/// makes an endpoint an approved one.
async fn approve(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: EndpointId,
    approval: Approval,
    settings: &Settings,
) -> Result<(), Error> {
    sqlx::query!(
        "UPDATE postrider.endpoints
            SET approved = true, registry_version = $3, allows_query = $4, sealed_query = $5
          WHERE tenant_id = $1 AND endpoint_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
        approval.registry_version,
        approval.allows_query,
        settings.sealed_query.as_deref(),
    )
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

async fn require_room(transaction: &mut PgTransaction<'_>, tenant_id: TenantId) -> Result<(), Error> {
    let count = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM postrider.endpoints
            WHERE tenant_id = $1 AND deleted_at IS NULL"#,
        tenant_id.as_uuid(),
    )
    .fetch_one(&mut **transaction)
    .await?;
    edit::require_room(count, "endpoints of this tenant", MAX_PER_TENANT)
}

/// Locks the endpoint, then every application whose plan it is part of.
async fn lock(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: EndpointId,
) -> Result<Vec<ApplicationId>, Error> {
    edit::lock_endpoint(transaction, tenant_id, id).await?;
    let applications = edit::applications_of(transaction, tenant_id, id).await?;
    edit::lock_exclusive(transaction, &applications).await?;
    Ok(applications)
}

impl DisabledReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::Gone => "gone",
        }
    }
}
