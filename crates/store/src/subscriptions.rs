//! Subscriptions: which event types of which application go to which endpoint.

use postrider_core::{
    id::{ApplicationId, EndpointId, SubscriptionId, TenantId},
    name::{EventTypePattern, Name},
    plan::MAX_SUBSCRIPTIONS_PER_APPLICATION,
};
use sqlx::{PgExecutor, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    edit::{self, Error},
    page::Slice,
    row,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    pub id: SubscriptionId,
    pub name: Name,
    pub application_id: ApplicationId,
    pub application: Name,
    pub endpoint_id: EndpointId,
    pub endpoint: Name,
    pub event_types: Vec<EventTypePattern>,
    /// A disabled subscription makes no new deliveries.
    pub enabled: bool,
    pub created_at: OffsetDateTime,
    pub updated_at: OffsetDateTime,
}

#[derive(Debug)]
pub struct NewSubscription<'a> {
    pub id: SubscriptionId,
    pub name: &'a Name,
    pub application_id: ApplicationId,
    pub endpoint_id: EndpointId,
    pub event_types: &'a [EventTypePattern],
}

/// What to change; `None` leaves a value as it is.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    pub enabled: Option<bool>,
    pub event_types: Option<Vec<EventTypePattern>>,
}

struct Row {
    subscription_id: Uuid,
    name: String,
    application_id: Uuid,
    application_name: String,
    endpoint_id: Uuid,
    endpoint_name: String,
    event_types: Vec<String>,
    enabled: bool,
    created_at: OffsetDateTime,
    updated_at: OffsetDateTime,
}

/// # Errors
/// [`Error::NameTaken`] when the tenant has a subscription of that name; [`Error::NotFound`] when it has no such
/// endpoint or application; [`Error::LimitReached`] when the application has
/// [`MAX_SUBSCRIPTIONS_PER_APPLICATION`].
pub async fn create(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    subscription: NewSubscription<'_>,
) -> Result<Subscription, Error> {
    edit::lock_endpoint(transaction, tenant_id, subscription.endpoint_id).await?;
    edit::lock_exclusive(transaction, &[subscription.application_id]).await?;
    let count = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM postrider.subscriptions WHERE application_id = $1"#,
        subscription.application_id.as_uuid(),
    )
    .fetch_one(&mut **transaction)
    .await?;
    edit::require_room(count, "subscriptions of this application", MAX_SUBSCRIPTIONS_PER_APPLICATION)?;
    let event_types = texts(subscription.event_types);
    // The tenant's own application has no subscriptions.
    let inserted = sqlx::query!(
        "INSERT INTO postrider.subscriptions
                (tenant_id, subscription_id, name, application_id, endpoint_id, event_types)
         SELECT tenant_id, $2, $3, application_id, $5, $6 FROM postrider.applications
          WHERE tenant_id = $1 AND application_id = $4 AND kind = 'publisher'",
        tenant_id.as_uuid(),
        subscription.id.as_uuid(),
        subscription.name.as_str(),
        subscription.application_id.as_uuid(),
        subscription.endpoint_id.as_uuid(),
        &event_types,
    )
    .execute(&mut **transaction)
    .await?;
    if inserted.rows_affected() != 1 {
        return Err(Error::NotFound);
    }
    edit::raise_versions(transaction, tenant_id, &[subscription.application_id]).await?;
    get_by_name(&mut **transaction, tenant_id, subscription.name).await?.ok_or(Error::NotFound)
}

pub async fn get_by_name(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    name: &Name,
) -> Result<Option<Subscription>, sqlx::Error> {
    let rows = select(executor, tenant_id, Some(name), Slice { before: None, rows: 1 }).await?;
    Ok(rows.into_iter().next())
}

/// A tenant's subscriptions, newest first, by id.
pub async fn list(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    slice: Slice,
) -> Result<Vec<Subscription>, sqlx::Error> {
    select(executor, tenant_id, None, slice).await
}

/// # Errors
/// [`Error::NotFound`] when the tenant has no such subscription.
pub async fn update(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    subscription: &Subscription,
    changes: Changes,
) -> Result<Subscription, Error> {
    edit::lock_exclusive(transaction, &[subscription.application_id]).await?;
    let event_types = changes.event_types.as_deref().map(texts);
    let updated = sqlx::query!(
        "UPDATE postrider.subscriptions
            SET enabled = coalesce($3, enabled), event_types = coalesce($4, event_types), updated_at = now()
          WHERE tenant_id = $1 AND subscription_id = $2",
        tenant_id.as_uuid(),
        subscription.id.as_uuid(),
        changes.enabled,
        event_types.as_deref(),
    )
    .execute(&mut **transaction)
    .await?;
    if updated.rows_affected() != 1 {
        return Err(Error::NotFound);
    }
    edit::raise_versions(transaction, tenant_id, &[subscription.application_id]).await?;
    get_by_name(&mut **transaction, tenant_id, &subscription.name).await?.ok_or(Error::NotFound)
}

/// Ends a subscription; what it made before is still delivered.
///
/// # Errors
/// [`Error::NotFound`] when the tenant has no such subscription.
pub async fn delete(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    subscription: &Subscription,
) -> Result<(), Error> {
    edit::lock_exclusive(transaction, &[subscription.application_id]).await?;
    let deleted = sqlx::query!(
        "DELETE FROM postrider.subscriptions WHERE tenant_id = $1 AND subscription_id = $2",
        tenant_id.as_uuid(),
        subscription.id.as_uuid(),
    )
    .execute(&mut **transaction)
    .await?;
    if deleted.rows_affected() != 1 {
        return Err(Error::NotFound);
    }
    edit::raise_versions(transaction, tenant_id, &[subscription.application_id]).await
}

async fn select(
    executor: impl PgExecutor<'_>,
    tenant_id: TenantId,
    name: Option<&Name>,
    slice: Slice,
) -> Result<Vec<Subscription>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        "SELECT s.subscription_id, s.name, s.application_id, a.name AS application_name,
                s.endpoint_id, e.name AS endpoint_name, s.event_types, s.enabled, s.created_at, s.updated_at
           FROM postrider.subscriptions AS s
           JOIN postrider.applications AS a USING (tenant_id, application_id)
           JOIN postrider.endpoints AS e USING (tenant_id, endpoint_id)
          WHERE s.tenant_id = $1
            AND ($2::text IS NULL OR s.name = $2)
            AND ($3::uuid IS NULL OR s.subscription_id < $3)
          ORDER BY s.subscription_id DESC LIMIT $4",
        tenant_id.as_uuid(),
        name.map(Name::as_str),
        slice.before,
        slice.rows,
    )
    .fetch_all(executor)
    .await?
    .into_iter()
    .map(Subscription::try_from)
    .collect()
}

fn texts(patterns: &[EventTypePattern]) -> Vec<String> {
    patterns.iter().map(ToString::to_string).collect()
}

impl Changes {
    pub const fn is_empty(&self) -> bool {
        self.enabled.is_none() && self.event_types.is_none()
    }
}

impl TryFrom<Row> for Subscription {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        let event_types = row.event_types.iter().map(|pattern| row::text("event_types", pattern));
        Ok(Self {
            id: row.subscription_id.into(),
            name: row::text("subscriptions.name", &row.name)?,
            application_id: row.application_id.into(),
            application: row::text("applications.name", &row.application_name)?,
            endpoint_id: row.endpoint_id.into(),
            endpoint: row::text("endpoints.name", &row.endpoint_name)?,
            event_types: event_types.collect::<Result<_, _>>()?,
            enabled: row.enabled,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}
