//! Events as people ask for them. The body is never read here: it is shown to receivers only.

use postrider_core::{
    id::{EventId, TenantId},
    name::{EventType, Name},
};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    attempts::{self, Attempt},
    deliveries::{self, Delivery},
    page::Slice,
    row,
    time_range::TimeRange,
};

/// Most deliveries, and most attempts, that a timeline shows.
pub const MAX_TIMELINE_ENTRIES: u16 = 500;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub id: EventId,
    pub application: Name,
    pub event_type: EventType,
    pub content_type: String,
    pub body_bytes: u32,
    /// W3C trace id.
    pub trace_id: [u8; 16],
    /// Deliveries it was planned for.
    pub deliveries: u32,
    pub accepted_at: OffsetDateTime,
}

/// Which events are wanted; `None` means any.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub application: Option<Name>,
    pub event_type: Option<EventType>,
    /// Accepted at or after.
    pub since: Option<OffsetDateTime>,
    /// Accepted before.
    pub until: Option<OffsetDateTime>,
}

/// An event with what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    pub event: Event,
    /// In the order of the fan-out plan.
    pub deliveries: Vec<Delivery>,
    /// By delivery and number.
    pub attempts: Vec<Attempt>,
    /// There are more deliveries or attempts than are shown.
    pub truncated: bool,
}

struct Row {
    event_id: Uuid,
    application: String,
    event_type: String,
    content_type: String,
    body_bytes: i32,
    trace_id: Vec<u8>,
    delivery_count: i32,
    accepted_at: OffsetDateTime,
}

/// One event, or `None` when the tenant has no such event.
pub async fn get(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    id: EventId,
) -> Result<Option<Event>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        r#"
        SELECT e.event_id, a.name AS application, e.event_type, e.content_type,
               octet_length(e.body) AS "body_bytes!", e.trace_id, e.delivery_count, e.accepted_at
          FROM postrider.events AS e
          JOIN postrider.applications AS a USING (tenant_id, application_id)
         WHERE e.tenant_id = $1 AND e.event_id = $2
        "#,
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_optional(connection)
    .await?
    .map(Event::try_from)
    .transpose()
}

/// A tenant's events, newest first, by id. Call it inside [`crate::page::begin_read`].
///
/// An application that the tenant does not have matches nothing.
pub async fn list(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    filter: &Filter,
    slice: Slice,
) -> Result<Vec<Event>, sqlx::Error> {
    let range = TimeRange { since: filter.since, until: filter.until };
    let (first_id, last_id) = range.ids_below(slice.before);
    sqlx::query_as!(
        Row,
        r#"
        WITH found AS (
            SELECT * FROM postrider.events
             WHERE tenant_id = $1 AND event_id >= $2 AND event_id <= $3
               AND ($4::text IS NULL OR application_id = (
                     SELECT application_id FROM postrider.applications WHERE tenant_id = $1 AND name = $4))
               AND ($5::text IS NULL OR event_type = $5)
               AND ($6::timestamptz IS NULL OR accepted_at >= $6)
               AND ($7::timestamptz IS NULL OR accepted_at < $7)
             ORDER BY event_id DESC LIMIT $8
        )
        SELECT f.event_id, a.name AS application, f.event_type, f.content_type,
               octet_length(f.body) AS "body_bytes!", f.trace_id, f.delivery_count, f.accepted_at
          FROM found AS f
          JOIN postrider.applications AS a ON a.tenant_id = $1 AND a.application_id = f.application_id
         ORDER BY f.event_id DESC
        "#,
        tenant_id.as_uuid(),
        first_id,
        last_id,
        filter.application.as_ref().map(Name::as_str),
        filter.event_type.as_ref().map(EventType::as_str),
        range.since,
        range.until,
        slice.rows,
    )
    .fetch_all(connection)
    .await?
    .into_iter()
    .map(Event::try_from)
    .collect()
}

/// An event, its deliveries and their attempts; `None` when the tenant has no such event. Call it inside
/// [`crate::page::begin_read`], so that all three are of one moment.
pub async fn timeline(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    id: EventId,
) -> Result<Option<Timeline>, sqlx::Error> {
    let Some(event) = get(connection, tenant_id, id).await? else {
        return Ok(None);
    };
    let shown = usize::from(MAX_TIMELINE_ENTRIES);
    let rows = i64::from(MAX_TIMELINE_ENTRIES) + 1;
    let mut deliveries = deliveries::of_event(connection, tenant_id, id, rows).await?;
    let mut attempts = attempts::of_event(connection, tenant_id, id, rows).await?;
    let truncated = deliveries.len() > shown || attempts.len() > shown;
    deliveries.truncate(shown);
    attempts.truncate(shown);
    Ok(Some(Timeline { event, deliveries, attempts, truncated }))
}

impl TryFrom<Row> for Event {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.event_id.into(),
            application: row::text("applications.name", &row.application)?,
            event_type: row::text("event_type", &row.event_type)?,
            content_type: row.content_type,
            body_bytes: row::number("body", row.body_bytes)?,
            trace_id: row.trace_id.try_into().map_err(|_| row::damaged("trace_id", &"not 16 bytes"))?,
            deliveries: row::number("delivery_count", row.delivery_count)?,
            accepted_at: row.accepted_at,
        })
    }
}
