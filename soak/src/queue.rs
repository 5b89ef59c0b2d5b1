//! What the soak asks the database while it runs. Only proofs need these statements, so they are not the store's.

use std::{collections::HashMap, time::Duration};

use postrider_core::id::DeliveryId;
use postrider_engine::{
    heartbeat::{BEAT, TIME_TO_LIVE},
    maintenance::recover,
};
use sqlx::{PgPool, Row, postgres::PgRow};
use time::OffsetDateTime;
use uuid::Uuid;

/// After this time without a fault, no lease of a dead process may be left: its time to live, a beat each to begin the
/// watch and to end it, the pause before the next pass, and a second for the work.
pub(crate) const STUCK_AFTER: Duration = TIME_TO_LIVE
    .saturating_add(BEAT.saturating_mul(2))
    .saturating_add(recover::SCHEDULE.interval)
    .saturating_add(Duration::from_secs(1));
/// How long past its hard limit a lease may stand: the longest pause between two passes, and time for the pass.
const OVERDUE_AFTER: Duration = recover::ROUTINE.saturating_add(Duration::from_secs(2));
/// How long past its due time a delivery may still be scheduled.
const LATE_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(crate) struct Queue(pub(crate) PgPool);

/// A delivery that a process held when it was killed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) delivery_id: DeliveryId,
    pub(crate) attempt_number: i32,
    pub(crate) killed_at: OffsetDateTime,
}

/// How long deliveries that were in flight at a kill waited for their next attempt.
#[derive(Debug, Clone, Copy, Default)]
pub struct Redelivered {
    pub count: usize,
    pub median: Duration,
    pub longest: Duration,
}

impl Queue {
    /// The processes that nobody has declared dead.
    pub(crate) async fn instances(&self) -> Result<Vec<Uuid>, sqlx::Error> {
        sqlx::query_scalar("SELECT instance_id FROM postrider.instances WHERE declared_dead_at IS NULL")
            .fetch_all(&self.0)
            .await
    }

    pub(crate) async fn held_by(
        &self,
        instance: Uuid,
        killed_at: OffsetDateTime,
    ) -> Result<Vec<Held>, sqlx::Error> {
        sqlx::query(
            "SELECT delivery_id, attempt_number FROM postrider.delivery_queue
              WHERE state = 'in_flight' AND lease_owner = $1",
        )
        .bind(instance)
        .try_map(|row: PgRow| {
            let delivery_id = DeliveryId::from_uuid(row.try_get("delivery_id")?);
            Ok(Held { delivery_id, attempt_number: row.try_get("attempt_number")?, killed_at })
        })
        .fetch_all(&self.0)
        .await
    }

    pub(crate) async fn open(&self) -> Result<usize, sqlx::Error> {
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM postrider.delivery_queue").fetch_one(&self.0).await?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Rows past the hard limit of their lease and one poll: never, whatever happens meanwhile.
    pub(crate) async fn overdue(&self) -> Result<Vec<(DeliveryId, String)>, sqlx::Error> {
        sqlx::query(
            "SELECT delivery_id, to_jsonb(q)::text AS line FROM postrider.delivery_queue q
              WHERE state = 'in_flight' AND lease_until < now() - make_interval(secs => $1)",
        )
        .bind(OVERDUE_AFTER.as_secs_f64())
        .try_map(described)
        .fetch_all(&self.0)
        .await
    }

    /// Rows that nobody works on, to be asked for when there has been no fault for [`STUCK_AFTER`].
    pub(crate) async fn stuck(&self) -> Result<Vec<(DeliveryId, String)>, sqlx::Error> {
        sqlx::query(
            "SELECT delivery_id, to_jsonb(q)::text AS line FROM postrider.delivery_queue q
              WHERE (state = 'in_flight' AND lease_owner NOT IN (
                        SELECT instance_id FROM postrider.instances
                         WHERE declared_dead_at IS NULL AND beat_at > now() - make_interval(secs => $1)))
                 OR (state = 'scheduled' AND due_at < now() - make_interval(secs => $2))",
        )
        .bind(TIME_TO_LIVE.as_secs_f64())
        .bind(LATE_AFTER.as_secs_f64())
        .try_map(described)
        .fetch_all(&self.0)
        .await
    }

    /// How long after the kill the next attempt of what was interrupted by it began.
    pub(crate) async fn redelivered(&self, held: &[Held]) -> Result<Redelivered, sqlx::Error> {
        let ids: Vec<Uuid> = held.iter().map(|held| held.delivery_id.as_uuid()).collect();
        let attempts: HashMap<(Uuid, i32), (String, OffsetDateTime)> = sqlx::query(
            "SELECT delivery_id, attempt_number, outcome, started_at FROM postrider.attempts
              WHERE delivery_id = ANY($1)",
        )
        .bind(ids)
        .try_map(|row: PgRow| {
            let key = (row.try_get("delivery_id")?, row.try_get("attempt_number")?);
            Ok((key, (row.try_get("outcome")?, row.try_get("started_at")?)))
        })
        .fetch_all(&self.0)
        .await?
        .into_iter()
        .collect();
        let wait = |held: &Held| {
            let id = held.delivery_id.as_uuid();
            let (outcome, _) = attempts.get(&(id, held.attempt_number))?;
            // Its result may have been on the way when the process was killed.
            (outcome == "interrupted").then_some(())?;
            let (_, next) = attempts.get(&(id, held.attempt_number + 1))?;
            Some(Duration::try_from(*next - held.killed_at).unwrap_or_default())
        };
        let mut waits: Vec<Duration> = held.iter().filter_map(wait).collect();
        waits.sort_unstable();
        Ok(Redelivered {
            count: waits.len(),
            median: waits.get(waits.len() / 2).copied().unwrap_or_default(),
            longest: waits.last().copied().unwrap_or_default(),
        })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that a query's map asks for")]
fn described(row: PgRow) -> Result<(DeliveryId, String), sqlx::Error> {
    Ok((DeliveryId::from_uuid(row.try_get("delivery_id")?), row.try_get("line")?))
}
