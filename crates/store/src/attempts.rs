//! Attempts: what came of each HTTP request. The attempt under way has no row yet: it is the lease in the queue.

use std::str::FromStr;

use postrider_core::id::{DeliveryId, EventId, TenantId};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{page::Slice, row};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub delivery_id: DeliveryId,
    /// Counted from 1; never restarts.
    pub number: u32,
    pub outcome: Outcome,
    pub started_at: OffsetDateTime,
    /// `None` while it is under way.
    pub ended_at: Option<OffsetDateTime>,
    /// `None` where it is not known how long the request took.
    pub latency_ms: Option<u32>,
    /// `None` when no answer came.
    pub status_code: Option<u16>,
    /// The kind of failure, such as `timeout`.
    pub failure: Option<String>,
    /// The same in plain words.
    pub detail: Option<String>,
    /// The registry's version that the endpoint was approved by when it was asked.
    pub registry_version: Option<i64>,
}

/// What an attempt led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    InFlight,
    Delivered,
    /// It failed, and another follows.
    Scheduled,
    /// It failed, and none follows.
    DeadLettered,
    /// The process that made it vanished: the receiver may have got the request.
    Interrupted,
}

/// A word that names no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an attempt's outcome is `in_flight`, `delivered`, `scheduled`, `dead_lettered` or `interrupted`")]
pub struct UnknownOutcome;

struct Row {
    delivery_id: Uuid,
    attempt_number: i32,
    outcome: String,
    started_at: OffsetDateTime,
    ended_at: Option<OffsetDateTime>,
    latency_ms: Option<i32>,
    status_code: Option<i16>,
    failure: Option<String>,
    detail: Option<String>,
    registry_version: Option<i64>,
}

/// The attempts of one delivery, newest first; see [`Attempt::key`] for `slice.before`.
pub async fn list(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    delivery_id: DeliveryId,
    slice: Slice,
) -> Result<Vec<Attempt>, sqlx::Error> {
    let before = slice.before.map(|key| i32::try_from(key.as_u128()).unwrap_or(i32::MAX));
    sqlx::query_as!(
        Row,
        r#"
        SELECT delivery_id AS "delivery_id!", attempt_number AS "attempt_number!", outcome AS "outcome!",
               started_at AS "started_at!", ended_at, latency_ms, status_code, failure, detail, registry_version
          FROM (SELECT delivery_id, attempt_number, outcome, started_at, ended_at, latency_ms, status_code,
                       failure, detail, registry_version
                  FROM postrider.attempts WHERE tenant_id = $1 AND delivery_id = $2
                UNION ALL
                SELECT delivery_id, attempt_number, 'in_flight', leased_at, NULL, NULL, NULL, NULL, NULL, NULL
                  FROM postrider.delivery_queue
                 WHERE tenant_id = $1 AND delivery_id = $2 AND state = 'in_flight') AS attempts
         WHERE $3::integer IS NULL OR attempt_number < $3
         ORDER BY attempt_number DESC LIMIT $4
        "#,
        tenant_id.as_uuid(),
        delivery_id.as_uuid(),
        before,
        slice.rows,
    )
    .fetch_all(connection)
    .await?
    .into_iter()
    .map(Attempt::try_from)
    .collect()
}

/// The attempts of all deliveries of one event, by delivery and number; at most `limit`.
pub async fn of_event(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    event_id: EventId,
    limit: i64,
) -> Result<Vec<Attempt>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        r#"
        SELECT delivery_id AS "delivery_id!", attempt_number AS "attempt_number!", outcome AS "outcome!",
               started_at AS "started_at!", ended_at, latency_ms, status_code, failure, detail, registry_version
          FROM (SELECT delivery_id, attempt_number, outcome, started_at, ended_at, latency_ms, status_code,
                       failure, detail, registry_version
                  FROM postrider.attempts WHERE tenant_id = $1 AND delivery_id BETWEEN $2 AND $3
                UNION ALL
                SELECT delivery_id, attempt_number, 'in_flight', leased_at, NULL, NULL, NULL, NULL, NULL, NULL
                  FROM postrider.delivery_queue
                 WHERE tenant_id = $1 AND delivery_id BETWEEN $2 AND $3 AND state = 'in_flight') AS attempts
         ORDER BY delivery_id, attempt_number LIMIT $4
        "#,
        tenant_id.as_uuid(),
        event_id.as_uuid(),
        event_id.last_delivery().as_uuid(),
        limit,
    )
    .fetch_all(connection)
    .await?
    .into_iter()
    .map(Attempt::try_from)
    .collect()
}

impl Attempt {
    /// What attempts of one delivery are listed by: the number, in the shape of an id.
    pub fn key(&self) -> Uuid {
        Uuid::from_u128(self.number.into())
    }
}

impl Outcome {
    pub const ALL: &[Self] =
        &[Self::InFlight, Self::Delivered, Self::Scheduled, Self::DeadLettered, Self::Interrupted];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Delivered => "delivered",
            Self::Scheduled => "scheduled",
            Self::DeadLettered => "dead_lettered",
            Self::Interrupted => "interrupted",
        }
    }
}

impl FromStr for Outcome {
    type Err = UnknownOutcome;

    fn from_str(text: &str) -> Result<Self, UnknownOutcome> {
        Self::ALL.iter().copied().find(|outcome| outcome.as_str() == text).ok_or(UnknownOutcome)
    }
}

impl TryFrom<Row> for Attempt {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            delivery_id: row.delivery_id.into(),
            number: row::number("attempt_number", row.attempt_number)?,
            outcome: row::text("outcome", &row.outcome)?,
            started_at: row.started_at,
            ended_at: row.ended_at,
            latency_ms: row.latency_ms.map(|value| row::number("latency_ms", value)).transpose()?,
            status_code: row.status_code.map(|value| row::number("status_code", value)).transpose()?,
            failure: row.failure,
            detail: row.detail,
            registry_version: row.registry_version,
        })
    }
}
