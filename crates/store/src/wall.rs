//! The second wall: a tenant's request works as a database role that sees one tenant's rows, whatever its queries ask
//! for. The first one is that every query names the tenant.
//!
//! Invariant: the role holds for one transaction and ends with it, so that no connection goes back to the pool as
//! somebody's. Before that it ends for nothing but what the service itself adds to a tenant's change, in `leave`.

use postrider_core::id::TenantId;
use sqlx::{AssertSqlSafe, PgPool, PgTransaction};

/// `begin`, and the role and the tenant set for the transaction it begins.
pub(crate) fn within(begin: &str, tenant_id: TenantId) -> AssertSqlSafe<String> {
    // An id is hexadecimal digits and dashes.
    AssertSqlSafe(format!(
        "{begin}; SET LOCAL ROLE postrider_tenant; SET LOCAL postrider.tenant_id = '{}'",
        tenant_id.as_uuid()
    ))
}

/// Ends the role before its transaction, which goes on as the pool's own: for a last statement about tables in which a tenant's
/// request has no business.
pub(crate) async fn leave(transaction: &mut PgTransaction<'_>) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("RESET ROLE").execute(&mut **transaction).await?;
    Ok(())
}

/// Whether the pool's own role may take on the one that tenants' requests work as.
pub async fn is_passable(pool: &PgPool) -> Result<bool, sqlx::Error> {
    // Since PostgreSQL 16 a member of a role may still not work as it.
    sqlx::query_scalar!(
        r#"SELECT pg_has_role('postrider_tenant',
                              CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END)
                  AS "is_passable!""#
    )
    .fetch_one(pool)
    .await
}
