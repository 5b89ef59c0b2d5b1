//! What the database says, read in one snapshot.

use postrider_core::id::{DeliveryId, EndpointId, EventId};
use sqlx::{PgPool, Row, postgres::PgRow};
use time::OffsetDateTime;
use uuid::Uuid;

/// All events, keys, deliveries and attempts.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// The database's clock.
    pub now: OffsetDateTime,
    pub events: Vec<Event>,
    pub keys: Vec<Keyed>,
    pub open: Vec<Open>,
    pub ended: Vec<Ended>,
    pub attempts: Vec<Attempt>,
}

#[derive(Debug, Clone)]
pub struct Event {
    pub id: EventId,
    pub body: Vec<u8>,
    pub deliveries: i32,
}

#[derive(Debug, Clone)]
pub struct Keyed {
    pub application: String,
    pub key: String,
    pub event_id: EventId,
}

#[derive(Debug, Clone)]
pub struct Open {
    pub delivery_id: DeliveryId,
    pub endpoint_id: EndpointId,
    pub state: String,
    pub attempt_number: i32,
    pub due_at: Option<OffsetDateTime>,
    pub lease_until: Option<OffsetDateTime>,
}

#[derive(Debug, Clone)]
pub struct Ended {
    pub delivery_id: DeliveryId,
    pub endpoint_id: EndpointId,
    pub is_delivered: bool,
    pub attempt_number: i32,
}

#[derive(Debug, Clone)]
pub struct Attempt {
    pub delivery_id: DeliveryId,
    pub number: i32,
    pub outcome: String,
}

impl Evidence {
    pub async fn read(pool: &PgPool) -> Result<Self, sqlx::Error> {
        let mut snapshot = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let now = sqlx::query_scalar("SELECT now()").fetch_one(&mut *snapshot).await?;
        let events = sqlx::query("SELECT event_id, body, delivery_count FROM postrider.events")
            .try_map(|row: PgRow| {
                Ok(Event {
                    id: event_id(&row)?,
                    body: row.try_get("body")?,
                    deliveries: row.try_get("delivery_count")?,
                })
            })
            .fetch_all(&mut *snapshot)
            .await?;
        let keys = sqlx::query(
            "SELECT a.name, k.idempotency_key, k.event_id
               FROM postrider.idempotency_keys k JOIN postrider.applications a USING (application_id)",
        )
        .try_map(|row: PgRow| {
            Ok(Keyed {
                application: row.try_get("name")?,
                key: row.try_get("idempotency_key")?,
                event_id: event_id(&row)?,
            })
        })
        .fetch_all(&mut *snapshot)
        .await?;
        let open = sqlx::query(
            "SELECT delivery_id, endpoint_id, state, attempt_number, due_at, lease_until
               FROM postrider.delivery_queue",
        )
        .try_map(|row: PgRow| {
            Ok(Open {
                delivery_id: delivery_id(&row)?,
                endpoint_id: endpoint_id(&row)?,
                state: row.try_get("state")?,
                attempt_number: row.try_get("attempt_number")?,
                due_at: row.try_get("due_at")?,
                lease_until: row.try_get("lease_until")?,
            })
        })
        .fetch_all(&mut *snapshot)
        .await?;
        let ended = sqlx::query(
            "SELECT delivery_id, endpoint_id, outcome = 'delivered' AS is_delivered, attempt_number
               FROM postrider.deliveries",
        )
        .try_map(|row: PgRow| {
            Ok(Ended {
                delivery_id: delivery_id(&row)?,
                endpoint_id: endpoint_id(&row)?,
                is_delivered: row.try_get("is_delivered")?,
                attempt_number: row.try_get("attempt_number")?,
            })
        })
        .fetch_all(&mut *snapshot)
        .await?;
        let attempts = sqlx::query("SELECT delivery_id, attempt_number, outcome FROM postrider.attempts")
            .try_map(|row: PgRow| {
                Ok(Attempt {
                    delivery_id: delivery_id(&row)?,
                    number: row.try_get("attempt_number")?,
                    outcome: row.try_get("outcome")?,
                })
            })
            .fetch_all(&mut *snapshot)
            .await?;
        snapshot.commit().await?;
        Ok(Self { now, events, keys, open, ended, attempts })
    }
}

fn event_id(row: &PgRow) -> Result<EventId, sqlx::Error> {
    row.try_get::<Uuid, _>("event_id").map(EventId::from_uuid)
}

fn delivery_id(row: &PgRow) -> Result<DeliveryId, sqlx::Error> {
    row.try_get::<Uuid, _>("delivery_id").map(DeliveryId::from_uuid)
}

fn endpoint_id(row: &PgRow) -> Result<EndpointId, sqlx::Error> {
    row.try_get::<Uuid, _>("endpoint_id").map(EndpointId::from_uuid)
}
