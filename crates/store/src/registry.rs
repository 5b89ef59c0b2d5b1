//! The registry of approved endpoints, as far as the database goes: what is approved now, who may address it, and the
//! books of what was applied.
//!
//! Applying changes endpoints of several tenants in one transaction. It takes its locks in the order of every edit, but
//! all of them first ([`lock`]): credentials, endpoint rows, then applications, each sorted.

use std::time::Duration;

use postrider_core::{
    id::{ApplicationId, EndpointId, TenantId},
    name::Name,
};
use sqlx::{Connection as _, PgConnection, PgPool, PgTransaction};
use uuid::Uuid;

use crate::{
    edit::{self, Error},
    endpoints::{self, Endpoint},
    row,
};

/// Key of the advisory lock that serialises applying; any fixed number that nothing else here uses.
const LOCK_KEY: i64 = 0x7265_6769_7374_7279;
/// Longest statement that only looks, and keeps no publisher waiting.
const LOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// An approved endpoint and who may address it.
#[derive(Debug, Clone, PartialEq)]
pub struct Approved {
    pub endpoint: Endpoint,
    /// Sorted.
    pub applications: Vec<Name>,
}

/// A version for the books.
#[derive(Debug, Clone, Copy)]
pub struct NewVersion<'a> {
    pub version: i64,
    /// Without secrets.
    pub document: &'a str,
    pub document_hash: &'a [u8; 32],
    pub applied_by: &'a str,
}

/// Whether the tenant's endpoints come from the registry alone.
pub async fn is_required(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar!(
        "SELECT approved_only FROM postrider.tenants WHERE tenant_id = $1",
        tenant_id.as_uuid()
    )
    .fetch_one(&mut **transaction)
    .await
}

/// Begins to look at many tenants, in one snapshot.
pub async fn begin_read(pool: &PgPool) -> Result<PgTransaction<'static>, sqlx::Error> {
    let mut read = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    bound_looks(&mut read).await?;
    Ok(read)
}

/// Begins a look within applying that nobody waits for, so that it may take longer than the rest. It ends, and its bound
/// with it, when what is returned is rolled back.
pub async fn begin_look<'a>(
    transaction: &'a mut PgTransaction<'static>,
) -> Result<PgTransaction<'a>, sqlx::Error> {
    let mut look = transaction.begin().await?;
    bound_looks(&mut look).await?;
    Ok(look)
}

async fn bound_looks(transaction: &mut PgTransaction<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!("SELECT set_config('statement_timeout', $1, true)", LOOK_TIMEOUT.as_millis().to_string())
        .fetch_one(&mut **transaction)
        .await?;
    Ok(())
}

/// Keeps others from applying until the transaction ends.
pub async fn begin_applying(transaction: &mut PgTransaction<'_>) -> Result<(), Error> {
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", LOCK_KEY).fetch_one(&mut **transaction).await?;
    Ok(())
}

/// The tenants of these names; unknown ones are left out.
pub async fn tenants(
    connection: &mut PgConnection,
    names: &[&Name],
) -> Result<Vec<(Name, TenantId)>, sqlx::Error> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let rows = sqlx::query!(
        "SELECT name, tenant_id FROM postrider.tenants WHERE name = ANY($1) ORDER BY name",
        &names
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter().map(|row| Ok((row::text("tenants.name", &row.name)?, row.tenant_id.into()))).collect()
}

/// Tenants that have approved endpoints, by name, and how many.
pub async fn tenants_with_approved(connection: &mut PgConnection) -> Result<Vec<(Name, i64)>, sqlx::Error> {
    let rows = sqlx::query!(
        r#"SELECT t.name, count(*) AS "count!"
             FROM postrider.endpoints e JOIN postrider.tenants t USING (tenant_id)
            WHERE e.approved AND e.deleted_at IS NULL
            GROUP BY t.name ORDER BY t.name"#
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter().map(|row| Ok((row::text("tenants.name", &row.name)?, row.count))).collect()
}

/// A tenant's publishing applications of these names; unknown ones are left out.
pub async fn applications(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    names: &[&Name],
) -> Result<Vec<(Name, ApplicationId)>, sqlx::Error> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let rows = sqlx::query!(
        "SELECT name, application_id FROM postrider.applications
          WHERE tenant_id = $1 AND kind = 'publisher' AND name = ANY($2)",
        tenant_id.as_uuid(),
        &names
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|row| Ok((row::text("applications.name", &row.name)?, row.application_id.into())))
        .collect()
}

/// A tenant's approved endpoints, by name.
pub async fn approved(
    connection: &mut PgConnection,
    tenant_id: TenantId,
) -> Result<Vec<Approved>, sqlx::Error> {
    let endpoints = endpoints::list_approved(&mut *connection, tenant_id).await?;
    let ids: Vec<Uuid> = endpoints.iter().map(|endpoint| endpoint.id.as_uuid()).collect();
    let rows = sqlx::query!(
        "SELECT l.endpoint_id, a.name
           FROM postrider.endpoint_applications l JOIN postrider.applications a USING (tenant_id, application_id)
          WHERE l.tenant_id = $1 AND l.endpoint_id = ANY($2)
          ORDER BY l.endpoint_id, a.name",
        tenant_id.as_uuid(),
        &ids
    )
    .fetch_all(connection)
    .await?;
    let listed = rows.into_iter().map(|row| {
        Ok((EndpointId::from_uuid(row.endpoint_id), row::text::<Name>("applications.name", &row.name)?))
    });
    let listed: Vec<(EndpointId, Name)> = listed.collect::<Result<_, sqlx::Error>>()?;
    let approved = endpoints.into_iter().map(|endpoint| {
        let own = listed.iter().filter(|(id, _)| *id == endpoint.id);
        let applications = own.map(|(_, name)| name.clone()).collect();
        Approved { endpoint, applications }
    });
    Ok(approved.collect())
}

/// Locks what applying touches: these endpoints, and the plans of all applications that may reach them or are to.
pub async fn lock(
    transaction: &mut PgTransaction<'_>,
    endpoints: &[(TenantId, EndpointId)],
    new_applications: &[ApplicationId],
    tenants: &[TenantId],
) -> Result<(), Error> {
    let mut endpoints = endpoints.to_vec();
    endpoints.sort_unstable_by_key(|(_, id)| *id);
    let mut touched = new_applications.to_vec();
    for (tenant_id, id) in &endpoints {
        edit::lock_endpoint(transaction, *tenant_id, *id).await?;
        touched.extend(edit::applications_of(transaction, *tenant_id, *id).await?);
    }
    for tenant_id in tenants {
        touched.extend(own_sender(transaction, *tenant_id).await?);
    }
    touched.sort_unstable();
    touched.dedup();
    edit::lock_exclusive(transaction, &touched).await
}

async fn own_sender(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
) -> Result<Option<ApplicationId>, sqlx::Error> {
    let id = sqlx::query_scalar!(
        "SELECT application_id FROM postrider.applications WHERE tenant_id = $1 AND kind = 'system'",
        tenant_id.as_uuid()
    )
    .fetch_optional(&mut **transaction)
    .await?;
    Ok(id.map(Into::into))
}

/// Says which applications may address an approved endpoint, and makes the plans of those that could or can stale. Call it
/// with all of them locked.
pub async fn set_applications(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    endpoint_id: EndpointId,
    applications: &[ApplicationId],
) -> Result<(), Error> {
    let mut touched = edit::applications_of(transaction, tenant_id, endpoint_id).await?;
    touched.extend(applications);
    let ids: Vec<Uuid> = applications.iter().map(|id| id.as_uuid()).collect();
    sqlx::query!(
        "DELETE FROM postrider.endpoint_applications
          WHERE tenant_id = $1 AND endpoint_id = $2 AND NOT application_id = ANY($3)",
        tenant_id.as_uuid(),
        endpoint_id.as_uuid(),
        &ids
    )
    .execute(&mut **transaction)
    .await?;
    sqlx::query!(
        "INSERT INTO postrider.endpoint_applications (tenant_id, endpoint_id, application_id)
         SELECT $1, $2, application_id FROM unnest($3::uuid[]) AS application_id
         ON CONFLICT DO NOTHING",
        tenant_id.as_uuid(),
        endpoint_id.as_uuid(),
        &ids
    )
    .execute(&mut **transaction)
    .await?;
    edit::raise_versions(transaction, tenant_id, &touched).await
}

/// How many deliveries to each of these endpoints are open; endpoints without any are left out.
///
/// One look at what their tenants have open, by the queue's key, since no index leads from an endpoint to all of it. Whoever
/// stores events waits for it if it is made under the locks of [`lock`]: look before, and then once more.
pub async fn open_deliveries(
    connection: &mut PgConnection,
    endpoints: &[(TenantId, EndpointId)],
) -> Result<Vec<(EndpointId, u64)>, sqlx::Error> {
    let mut tenants: Vec<Uuid> = endpoints.iter().map(|(tenant_id, _)| tenant_id.as_uuid()).collect();
    tenants.dedup();
    let ids: Vec<Uuid> = endpoints.iter().map(|(_, id)| id.as_uuid()).collect();
    let rows = sqlx::query!(
        // A join, which is hashed: `ANY` might compare each row with each id.
        r#"SELECT endpoint_id AS "endpoint_id!", count(*) AS "count!"
             FROM postrider.delivery_queue JOIN unnest($2::uuid[]) AS asked (endpoint_id) USING (endpoint_id)
            WHERE tenant_id = ANY($1)
            GROUP BY endpoint_id"#,
        &tenants,
        &ids,
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter().map(|row| Ok((row.endpoint_id.into(), row::number("count", row.count)?))).collect()
}

/// The number of the version that the tenant's registry has; 0 before the first.
pub async fn version(connection: &mut PgConnection, tenant_id: TenantId) -> Result<i64, sqlx::Error> {
    let version = sqlx::query_scalar!(
        "SELECT version FROM postrider.registry_versions WHERE tenant_id = $1 ORDER BY version DESC LIMIT 1",
        tenant_id.as_uuid()
    )
    .fetch_optional(connection)
    .await?;
    Ok(version.unwrap_or_default())
}

/// Writes a version into the books.
pub async fn record(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    version: NewVersion<'_>,
) -> Result<(), Error> {
    sqlx::query!(
        "INSERT INTO postrider.registry_versions (tenant_id, version, document, document_hash, applied_by)
         VALUES ($1, $2, $3, $4, $5)",
        tenant_id.as_uuid(),
        version.version,
        version.document,
        version.document_hash.as_slice(),
        version.applied_by
    )
    .execute(&mut **transaction)
    .await?;
    Ok(())
}
