//! Editing resources: every change of an application, endpoint or subscription follows the same steps in one
//! transaction, so that no event is planned under what was true before the change was committed.
//!
//! 1. lock the rows of the touched endpoints ([`lock_endpoint`]);
//! 2. then lock the touched applications, sorted, against running ingest ([`lock_exclusive`]);
//! 3. change;
//! 4. raise the version of each touched application ([`raise_versions`]), which makes cached plans stale.
//!
//! Endpoint rows come before applications everywhere, so two edits never wait for each other in a circle. A new
//! subscription locks its endpoint too: otherwise it could slip between an endpoint edit's look at who subscribes and
//! that edit's commit, and the new subscriber's plan would keep the old endpoint.

use postrider_core::id::{ApplicationId, EndpointId, TenantId};
use sqlx::{PgPool, PgTransaction};
use uuid::Uuid;

/// Editing waits for ingest of the same application, which lasts milliseconds; seconds mean something hangs. What is read
/// after a lock must be what is true then, whatever the database's own default is. A process that stops in the middle of
/// an edit would keep ingest out for as long as it stands still, so its session ends.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; \
                     SET LOCAL lock_timeout = '5s'; SET LOCAL statement_timeout = '10s'; \
                     SET LOCAL idle_in_transaction_session_timeout = '10s'";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the name is taken")]
    NameTaken,
    #[error("no such resource in this tenant")]
    NotFound,
    /// As many as there may be.
    #[error("there are {limit} {what} already")]
    LimitReached { what: &'static str, limit: u32 },
    #[error("the database refused or did not answer")]
    Database(#[source] sqlx::Error),
}

/// Constraints that a caller's choice of name can break.
const NAMES: &[&str] = &[
    "tenant_names_are_unique",
    "management_key_names_are_unique_in_a_tenant",
    "application_names_are_unique_in_a_tenant",
    "endpoint_names_are_unique_in_a_tenant",
    "subscription_names_are_unique_in_a_tenant",
];

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let constraint = error.as_database_error().and_then(sqlx::error::DatabaseError::constraint);
        if constraint.is_some_and(|name| NAMES.contains(&name)) {
            Self::NameTaken
        } else {
            Self::Database(error)
        }
    }
}

/// Begins a transaction whose waits are bounded. Dropped without `commit`, it changes nothing.
pub async fn begin(pool: &PgPool) -> Result<PgTransaction<'static>, Error> {
    Ok(pool.begin_with(BEGIN).await?)
}

/// Refuses one more than `limit`. The count is exact while the lock that creating takes is held.
pub(crate) fn require_room(count: i64, what: &'static str, limit: u32) -> Result<(), Error> {
    if count < i64::from(limit) { Ok(()) } else { Err(Error::LimitReached { what, limit }) }
}

/// Locks an endpoint's row until the transaction ends, against other edits and against new subscriptions to it.
pub(crate) async fn lock_endpoint(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    endpoint_id: EndpointId,
) -> Result<(), Error> {
    sqlx::query_scalar!(
        "SELECT endpoint_id FROM postrider.endpoints WHERE tenant_id = $1 AND endpoint_id = $2 FOR UPDATE",
        tenant_id.as_uuid(),
        endpoint_id.as_uuid(),
    )
    .fetch_optional(&mut **transaction)
    .await?
    .map(drop)
    .ok_or(Error::NotFound)
}

/// The applications whose events may go to an endpoint: those that subscribe, enabled or not, and the tenant's own.
/// Call it with the endpoint locked, or the answer may be out of date.
pub(crate) async fn applications_of(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    endpoint_id: EndpointId,
) -> Result<Vec<ApplicationId>, Error> {
    let ids = sqlx::query_scalar!(
        "SELECT application_id FROM postrider.applications WHERE tenant_id = $1 AND kind = 'system'
         UNION
         SELECT application_id FROM postrider.subscriptions WHERE tenant_id = $1 AND endpoint_id = $2",
        tenant_id.as_uuid(),
        endpoint_id.as_uuid(),
    )
    .fetch_all(&mut **transaction)
    .await?;
    Ok(ids.into_iter().flatten().map(ApplicationId::from_uuid).collect())
}

/// Waits until no ingest of these applications runs, and keeps new ones out until the transaction ends.
///
/// Ingest takes the same advisory locks shared, also sorted by id.
pub(crate) async fn lock_exclusive(
    transaction: &mut PgTransaction<'_>,
    applications: &[ApplicationId],
) -> Result<(), Error> {
    let mut ids: Vec<Uuid> = applications.iter().map(|id| id.as_uuid()).collect();
    ids.sort_unstable();
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(postrider.plan_lock_key(application_id)) FROM unnest($1::uuid[]) AS application_id",
        &ids,
    )
    .fetch_all(&mut **transaction)
    .await?;
    Ok(())
}

/// Makes every plan for these applications stale. Ingest reads the version after its lock, in a later statement.
pub(crate) async fn raise_versions(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    applications: &[ApplicationId],
) -> Result<(), Error> {
    let ids: Vec<Uuid> = applications.iter().map(|id| id.as_uuid()).collect();
    sqlx::query!(
        "UPDATE postrider.applications SET routing_version = routing_version + 1
          WHERE tenant_id = $1 AND application_id = ANY($2)",
        tenant_id.as_uuid(),
        &ids,
    )
    .execute(&mut **transaction)
    .await?;
    Ok(())
}
