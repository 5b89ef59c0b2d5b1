//! Tenants. One is born whole: with the key of its owner, and with the application that sends its test events.
//!
//! A change of its limits makes the plans of all its applications stale, in the order of every edit: first the row of what
//! it has used, then its list of applications, then their plans.

use postrider_core::{
    id::{ApplicationId, TenantId},
    name::Name,
    quota::Settings,
};
use sqlx::{PgExecutor, PgTransaction};
use time::OffsetDateTime;

use crate::{
    edit::{self, Error},
    management_keys::{self, NewManagementKey},
    quota,
    row::{number, text},
};

/// Name of the application, one per tenant, that sends test events. It is taken from the start and never listed.
pub const SYSTEM_APPLICATION: &str = "postrider-system";

#[derive(Debug)]
pub struct NewTenant<'a> {
    pub id: TenantId,
    pub name: &'a Name,
    /// What people call it; free text.
    pub display_name: &'a str,
    pub owner_key: NewManagementKey<'a>,
    pub system_application_id: ApplicationId,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    pub id: TenantId,
    pub name: Name,
    pub display_name: String,
    /// What was set for it; the installation's defaults hold for the rest.
    pub limits: Settings,
    /// Its endpoints come from the operator's registry alone.
    pub approved_only: bool,
    pub created_at: OffsetDateTime,
}

/// The columns of a tenant's limits.
pub(crate) struct LimitColumns {
    pub(crate) ingest_rate: Option<f64>,
    pub(crate) ingest_burst: Option<i32>,
    pub(crate) hourly_events: Option<i64>,
    pub(crate) hourly_bytes: Option<i64>,
    pub(crate) open_deliveries: Option<i64>,
}

impl LimitColumns {
    pub(crate) fn settings(&self) -> Result<Settings, sqlx::Error> {
        let quota = |column, value: Option<i64>| value.map(|value| number(column, value)).transpose();
        Ok(Settings {
            rate: self.ingest_rate,
            burst: self.ingest_burst.map(|burst| number("ingest_burst", burst)).transpose()?,
            hourly_events: quota("hourly_events", self.hourly_events)?,
            hourly_bytes: quota("hourly_bytes", self.hourly_bytes)?,
            open_deliveries: quota("open_deliveries", self.open_deliveries)?,
        })
    }
}

pub async fn get_by_name(executor: impl PgExecutor<'_>, name: &Name) -> Result<Option<Tenant>, sqlx::Error> {
    let row = sqlx::query!(
        "SELECT tenant_id, name, display_name, ingest_rate, ingest_burst, hourly_events, hourly_bytes, open_deliveries,
                approved_only, created_at
           FROM postrider.tenants WHERE name = $1",
        name.as_str(),
    )
    .fetch_optional(executor)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let limits = LimitColumns {
        ingest_rate: row.ingest_rate,
        ingest_burst: row.ingest_burst,
        hourly_events: row.hourly_events,
        hourly_bytes: row.hourly_bytes,
        open_deliveries: row.open_deliveries,
    };
    Ok(Some(Tenant {
        id: row.tenant_id.into(),
        name: text("name", &row.name)?,
        display_name: row.display_name,
        limits: limits.settings()?,
        approved_only: row.approved_only,
        created_at: row.created_at,
    }))
}

/// Keeps a tenant's limits as they are until the transaction ends, to change them. Read them after it.
pub async fn lock_limits(transaction: &mut PgTransaction<'_>, tenant_id: TenantId) -> Result<(), Error> {
    Ok(quota::begin_change(transaction, tenant_id).await?)
}

/// Sets a locked tenant's limits. Events of the tenant are stored under them from the commit on.
///
/// # Errors
/// [`Error::NotFound`] when there is no such tenant.
pub async fn set_limits(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    limits: &Settings,
    approved_only: bool,
) -> Result<(), Error> {
    let whole = |value: Option<u64>| value.map(|value| i64::try_from(value).unwrap_or(i64::MAX));
    let applications = edit::lock_all_applications(transaction, tenant_id).await?;
    edit::lock_exclusive(transaction, &applications).await?;
    let changed = sqlx::query!(
        "UPDATE postrider.tenants
            SET ingest_rate = $2, ingest_burst = $3, hourly_events = $4, hourly_bytes = $5, open_deliveries = $6,
                approved_only = $7
          WHERE tenant_id = $1",
        tenant_id.as_uuid(),
        limits.rate,
        limits.burst.map(|burst| i32::try_from(burst).unwrap_or(i32::MAX)),
        whole(limits.hourly_events),
        whole(limits.hourly_bytes),
        whole(limits.open_deliveries),
        approved_only,
    )
    .execute(&mut **transaction)
    .await?;
    if changed.rows_affected() != 1 {
        return Err(Error::NotFound);
    }
    edit::raise_versions(transaction, tenant_id, &applications).await
}

/// # Errors
/// [`Error::NameTaken`] when there is a tenant of that name.
pub async fn create(transaction: &mut PgTransaction<'_>, tenant: NewTenant<'_>) -> Result<(), Error> {
    sqlx::query!(
        "INSERT INTO postrider.tenants (tenant_id, name, display_name) VALUES ($1, $2, $3)",
        tenant.id.as_uuid(),
        tenant.name.as_str(),
        tenant.display_name,
    )
    .execute(&mut **transaction)
    .await?;
    sqlx::query!(
        "INSERT INTO postrider.applications (tenant_id, application_id, name, kind) VALUES ($1, $2, $3, 'system')",
        tenant.id.as_uuid(),
        tenant.system_application_id.as_uuid(),
        SYSTEM_APPLICATION,
    )
    .execute(&mut **transaction)
    .await?;
    management_keys::create(transaction, tenant.id, tenant.owner_key).await.map(drop)
}
