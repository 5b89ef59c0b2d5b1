//! Tenants. One is born whole: with the key of its owner, and with the application that sends its test events.

use postrider_core::{
    id::{ApplicationId, TenantId},
    name::Name,
};
use sqlx::PgTransaction;

use crate::{
    edit::Error,
    management_keys::{self, NewManagementKey},
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
    management_keys::create(transaction, tenant.id, tenant.owner_key).await
}
