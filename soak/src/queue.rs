//! What the soak asks the database while it runs. Only proofs need these statements, so they are not the store's.

use std::{collections::HashMap, time::Duration};

use postrider_core::id::DeliveryId;
use postrider_engine::{
    heartbeat::{BEAT, TIME_TO_LIVE},
    maintenance::recover,
};
use sqlx::{PgPool, Row, postgres::PgRow};
use time::OffsetDateTime;
use tokio::time::sleep;
use uuid::Uuid;

use crate::repeats::AttemptKey;

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

/// A database that just came back may refuse a question or two.
const TRIES: u32 = 50;
const PAUSE_BETWEEN_TRIES: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub(crate) struct Queue(pub(crate) PgPool);

/// An attempt that was in flight when its process was killed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) attempt: AttemptKey,
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
    /// The processes of a role that nobody has declared dead.
    pub(crate) async fn instances(&self, role: &str) -> Result<Vec<Uuid>, sqlx::Error> {
        sqlx::query_scalar(
            "SELECT instance_id FROM postrider.instances WHERE role = $1 AND declared_dead_at IS NULL",
        )
        .bind(role)
        .fetch_all(&self.0)
        .await
    }

    /// Attempts in flight, of one process or of all. The database may be just coming back, so it is asked several times.
    pub(crate) async fn in_flight(&self, owner: Option<Uuid>) -> Result<Vec<AttemptKey>, sqlx::Error> {
        let mut tries = 0;
        loop {
            match self.try_in_flight(owner).await {
                Err(_) if tries < TRIES => tries += 1,
                found => return found,
            }
            sleep(PAUSE_BETWEEN_TRIES).await;
        }
    }

    async fn try_in_flight(&self, owner: Option<Uuid>) -> Result<Vec<AttemptKey>, sqlx::Error> {
        sqlx::query(
            "SELECT delivery_id, attempt_number FROM postrider.delivery_queue
              WHERE state = 'in_flight' AND ($1::uuid IS NULL OR lease_owner = $1)",
        )
        .bind(owner)
        .try_map(|row: PgRow| {
            Ok((DeliveryId::from_uuid(row.try_get("delivery_id")?), row.try_get("attempt_number")?))
        })
        .fetch_all(&self.0)
        .await
    }

    /// Messages to the broker that it has not confirmed.
    pub(crate) async fn unpublished(&self) -> Result<usize, sqlx::Error> {
        self.count("SELECT count(*) FROM postrider.outbox").await
    }

    pub(crate) async fn open(&self) -> Result<usize, sqlx::Error> {
        self.count("SELECT count(*) FROM postrider.delivery_queue").await
    }

    async fn count(&self, statement: &'static str) -> Result<usize, sqlx::Error> {
        let count: i64 = sqlx::query_scalar(statement).fetch_one(&self.0).await?;
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
    pub(crate) async fn redelivered(&self, cut: &[Cut]) -> Result<Redelivered, sqlx::Error> {
        let ids: Vec<Uuid> = cut.iter().map(|cut| cut.attempt.0.as_uuid()).collect();
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
        let wait = |cut: &Cut| {
            let (id, number) = (cut.attempt.0.as_uuid(), cut.attempt.1);
            let (outcome, _) = attempts.get(&(id, number))?;
            // Its result may have been on the way when the process was killed.
            (outcome == "interrupted").then_some(())?;
            let (_, next) = attempts.get(&(id, number + 1))?;
            Some(Duration::try_from(*next - cut.killed_at).unwrap_or_default())
        };
        let mut waits: Vec<Duration> = cut.iter().filter_map(wait).collect();
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
