//! Deliveries as people ask for them: open ones from the queue and ended ones from the history, in one list.
//!
//! A delivery is in exactly one of the two tables, and one statement sees one snapshot, so none is missed or shown
//! twice while it moves between them.

mod record;

use postrider_core::{
    id::{DeliveryId, EventId, TenantId},
    name::{EventType, Name},
};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use record::Row;
pub(crate) use record::dead_reason;
pub use record::{Delivery, State, Status};

use crate::{page::Slice, time_range::TimeRange};

/// Which deliveries are wanted; `None` means any.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub status: Option<Status>,
    pub application: Option<Name>,
    pub endpoint: Option<Name>,
    pub event_type: Option<EventType>,
    /// Accepted at or after.
    pub since: Option<OffsetDateTime>,
    /// Accepted before.
    pub until: Option<OffsetDateTime>,
}

/// One delivery, or `None` when the tenant has no such delivery.
pub async fn get(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    id: DeliveryId,
) -> Result<Option<Delivery>, sqlx::Error> {
    let rows = in_range(connection, tenant_id, id.as_uuid(), id.as_uuid(), 1).await?;
    Ok(rows.into_iter().next())
}

/// The deliveries of one event, in the order of its plan; at most `limit`.
pub async fn of_event(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    event_id: EventId,
    limit: i64,
) -> Result<Vec<Delivery>, sqlx::Error> {
    in_range(connection, tenant_id, event_id.as_uuid(), event_id.last_delivery().as_uuid(), limit).await
}

/// A tenant's deliveries, newest event first, by id. Call it inside [`crate::page::begin_read`].
///
/// An application or endpoint that the tenant does not have matches nothing.
pub async fn list(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    filter: &Filter,
    slice: Slice,
) -> Result<Vec<Delivery>, sqlx::Error> {
    let arms = Arms::of(filter.status);
    let range = TimeRange { since: filter.since, until: filter.until };
    let (first_id, last_id) = range.ids_below(slice.before);
    sqlx::query_file_as!(
        Row,
        "src/deliveries/list.sql",
        tenant_id.as_uuid(),
        filter.application.as_ref().map(Name::as_str),
        filter.endpoint.as_ref().map(Name::as_str),
        arms.open,
        first_id,
        last_id,
        filter.status.map(Status::as_str),
        range.since,
        range.until,
        filter.event_type.as_ref().map(EventType::as_str),
        slice.rows,
        arms.ended,
        arms.dead,
    )
    .fetch_all(connection)
    .await?
    .into_iter()
    .map(Delivery::try_from)
    .collect()
}

async fn in_range(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    first: Uuid,
    last: Uuid,
    limit: i64,
) -> Result<Vec<Delivery>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        r#"
        WITH found AS (
            SELECT delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, state,
                   due_at, deadline_at, pending_since, leased_at, NULL::timestamptz AS ended_at,
                   NULL::text AS dead_reason, attempt_number
              FROM postrider.delivery_queue
             WHERE tenant_id = $1 AND delivery_id BETWEEN $2 AND $3
            UNION ALL
            SELECT delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, outcome,
                   NULL, NULL, NULL, NULL, ended_at, dead_reason, attempt_number
              FROM postrider.deliveries
             WHERE tenant_id = $1 AND delivery_id BETWEEN $2 AND $3
             ORDER BY delivery_id LIMIT $4
        )
        SELECT f.delivery_id AS "delivery_id!", f.event_id AS "event_id!", f.signing_key_id AS "signing_key_id!",
               a.name AS application, p.name AS endpoint,
               (SELECT event_type FROM postrider.events AS e WHERE e.tenant_id = $1 AND e.event_id = f.event_id) AS event_type,
               f.accepted_at AS "accepted_at!", f.state AS "state!", f.due_at, f.deadline_at, f.pending_since,
               f.leased_at, f.ended_at, f.dead_reason, f.attempt_number AS "attempt_number!",
               last.status_code AS "last_status?", last.failure AS "last_failure?"
          FROM found AS f
          JOIN postrider.applications AS a ON a.tenant_id = $1 AND a.application_id = f.application_id
          JOIN postrider.endpoints AS p ON p.tenant_id = $1 AND p.endpoint_id = f.endpoint_id
          LEFT JOIN LATERAL (
               SELECT status_code, failure FROM postrider.attempts AS t
                WHERE t.tenant_id = $1 AND t.delivery_id = f.delivery_id ORDER BY attempt_number DESC LIMIT 1
          ) AS last ON true
         ORDER BY f.delivery_id
        "#,
        tenant_id.as_uuid(),
        first,
        last,
        limit,
    )
    .fetch_all(connection)
    .await?
    .into_iter()
    .map(Delivery::try_from)
    .collect()
}

/// Which parts of the list's statement can hold deliveries of the wanted state.
struct Arms {
    open: bool,
    ended: bool,
    dead: bool,
}

impl Arms {
    const fn of(status: Option<Status>) -> Self {
        match status {
            None => Self { open: true, ended: true, dead: false },
            Some(Status::Scheduled | Status::Pending | Status::InFlight | Status::Held) => {
                Self { open: true, ended: false, dead: false }
            }
            Some(Status::Delivered) => Self { open: false, ended: true, dead: false },
            Some(Status::DeadLettered) => Self { open: false, ended: false, dead: true },
        }
    }
}
