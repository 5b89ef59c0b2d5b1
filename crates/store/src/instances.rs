//! Running processes and their heartbeats. A process's leases live as long as its heart beats, so nothing is renewed
//! row by row.
//!
//! Others judge a heart by watching its counter stand still during their own unbroken observation; no clock is compared.
//! Death is final: a process that was declared dead finds that its heartbeat updates no row, and must start anew.

use std::time::Duration;

use postrider_core::id::InstanceId;
use sqlx::{PgConnection, PgExecutor};
use uuid::Uuid;

use crate::error::Error;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Api,
    Worker,
    All,
}

impl Role {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Worker => "worker",
            Self::All => "all",
        }
    }
}

/// Announces a process under its id. Once more does no harm: the first answer may have been lost.
pub async fn register(
    connection: &mut PgConnection,
    instance_id: InstanceId,
    role: Role,
    host: &str,
) -> Result<(), Error> {
    sqlx::query!(
        "INSERT INTO postrider.instances (instance_id, role, host) VALUES ($1, $2, $3)
             ON CONFLICT (instance_id) DO NOTHING",
        instance_id.as_uuid(),
        role.as_str(),
        host,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Raises the counter. `false`: this process was declared dead, its leases are gone.
pub async fn beat(connection: &mut PgConnection, instance_id: InstanceId) -> Result<bool, Error> {
    let done = sqlx::query!(
        "UPDATE postrider.instances SET beats = beats + 1, beat_at = now()
          WHERE instance_id = $1 AND declared_dead_at IS NULL",
        instance_id.as_uuid(),
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Another process and its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heart {
    pub instance_id: InstanceId,
    pub beats: i64,
}

/// The counters of all processes that nobody has declared dead.
pub async fn hearts(connection: &mut PgConnection) -> Result<Vec<Heart>, Error> {
    let rows =
        sqlx::query!("SELECT instance_id, beats FROM postrider.instances WHERE declared_dead_at IS NULL")
            .fetch_all(connection)
            .await?;
    Ok(rows.into_iter().map(|row| Heart { instance_id: row.instance_id.into(), beats: row.beats }).collect())
}

/// Declares dead those whose counter still stands where it was seen.
pub async fn declare_dead(connection: &mut PgConnection, seen: &[Heart]) -> Result<u64, Error> {
    let ids: Vec<Uuid> = seen.iter().map(|heart| heart.instance_id.as_uuid()).collect();
    let beats: Vec<i64> = seen.iter().map(|heart| heart.beats).collect();
    let done = sqlx::query!(
        "UPDATE postrider.instances i SET declared_dead_at = now()
           FROM unnest($1::uuid[], $2::bigint[]) AS seen (instance_id, beats)
          WHERE i.instance_id = seen.instance_id AND i.beats = seen.beats AND i.declared_dead_at IS NULL",
        &ids,
        &beats,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

/// The processes whose leases are void.
pub async fn dead(connection: &mut PgConnection) -> Result<Vec<InstanceId>, Error> {
    let ids =
        sqlx::query_scalar!("SELECT instance_id FROM postrider.instances WHERE declared_dead_at IS NOT NULL")
            .fetch_all(connection)
            .await?;
    Ok(ids.into_iter().map(InstanceId::from_uuid).collect())
}

/// A process that ends in order declares its own death, so that whatever it left behind is taken over at once.
pub async fn retire(connection: &mut PgConnection, instance_id: InstanceId) -> Result<(), Error> {
    sqlx::query!(
        "UPDATE postrider.instances SET declared_dead_at = now() WHERE instance_id = $1 AND declared_dead_at IS NULL",
        instance_id.as_uuid(),
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// How many processes deliver whose heart beat lately, by the database's clock. Those that only accept events do not count.
pub async fn active_workers(
    executor: impl PgExecutor<'_>,
    time_to_live: Duration,
) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "active!" FROM postrider.instances
         WHERE role IN ('worker', 'all') AND declared_dead_at IS NULL AND beat_at > now() - make_interval(secs => $1)
        "#,
        time_to_live.as_secs_f64(),
    )
    .fetch_one(executor)
    .await
}

/// Forgets processes that died long ago and hold no lease any more; the answer counts them.
pub async fn forget_dead(connection: &mut PgConnection) -> Result<u64, Error> {
    let done = sqlx::query!(
        "DELETE FROM postrider.instances i
          WHERE declared_dead_at < now() - interval '1 hour'
            AND NOT EXISTS (SELECT FROM postrider.delivery_queue q
                             WHERE q.state = 'in_flight' AND q.lease_owner = i.instance_id)"
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
