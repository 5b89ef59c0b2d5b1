//! Replays that are over: what ends without anybody, and what is removed then. A replay's own row stays, as what was done
//! in the audit log does.

use postrider_core::id::{ReplayId, TenantId};
use sqlx::{Connection as _, PgConnection};

use super::{Status, change::close};
use crate::{
    audit::{self, Action, Actor, By, Change, Target},
    error::Error,
};

/// A replay that has come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    pub tenant_id: TenantId,
    pub id: ReplayId,
}

/// Ends up to `limit` running replays of which nothing is left.
pub async fn finish(connection: &mut PgConnection, limit: u16) -> Result<Vec<Finished>, Error> {
    let done = sqlx::query!(
        "SELECT tenant_id, replay_id FROM postrider.replays r
          WHERE ended_at IS NULL AND state = 'running'
            AND NOT EXISTS (SELECT FROM postrider.replay_endpoints e
                 WHERE e.tenant_id = r.tenant_id AND e.replay_id = r.replay_id AND e.due_at IS NOT NULL)
          LIMIT $1",
        i64::from(limit),
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut finished = Vec::with_capacity(done.len());
    for row in done {
        let (tenant_id, id) = (TenantId::from_uuid(row.tenant_id), ReplayId::from_uuid(row.replay_id));
        let mut transaction = connection.begin().await?;
        // Another process may have been quicker, or a person.
        if close(&mut transaction, tenant_id, id, Status::Finished).await? {
            let by = By { actor: Actor::Process, address: None };
            let change = Change::whole(Action::ReplayFinished, Target::of_id("replay", id));
            audit::record(&mut transaction, Some(tenant_id), &by, &change).await?;
            transaction.commit().await?;
            finished.push(Finished { tenant_id, id });
        }
    }
    Ok(finished)
}

/// Writes down of up to `limit` previews that nobody executed them in time.
pub async fn expire(connection: &mut PgConnection, limit: u16) -> Result<u64, Error> {
    let expired = sqlx::query!(
        "WITH late AS MATERIALIZED (
             SELECT ctid AS location FROM postrider.replays
              WHERE ended_at IS NULL AND state = 'previewed' AND expires_at <= now()
              LIMIT $1
                FOR UPDATE SKIP LOCKED
         )
         UPDATE postrider.replays r SET state = 'expired', ended_at = r.expires_at
           FROM late WHERE r.ctid = late.location",
        i64::from(limit),
    )
    .execute(connection)
    .await?;
    Ok(expired.rows_affected())
}

/// Removes up to `limit` letters that a replay which is over has kept; `false` when there is nothing more to remove.
pub async fn tidy(connection: &mut PgConnection, limit: u16) -> Result<bool, Error> {
    let mut transaction = connection.begin().await?;
    let over = sqlx::query!(
        "SELECT tenant_id, replay_id FROM postrider.replays
          WHERE ended_at IS NOT NULL AND NOT is_tidy
          ORDER BY ended_at LIMIT 1
            FOR UPDATE SKIP LOCKED"
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(over) = over else {
        // Dropped, it would stay open until the connection is used again.
        transaction.rollback().await?;
        return Ok(false);
    };
    let removed = sqlx::query!(
        "DELETE FROM postrider.replay_items
          WHERE ctid = ANY(ARRAY(SELECT ctid FROM postrider.replay_items WHERE replay_id = $1 LIMIT $2))",
        over.replay_id,
        i64::from(limit),
    )
    .execute(&mut *transaction)
    .await?;
    if removed.rows_affected() < u64::from(limit) {
        sqlx::query!(
            "DELETE FROM postrider.replay_endpoints WHERE tenant_id = $1 AND replay_id = $2",
            over.tenant_id,
            over.replay_id,
        )
        .execute(&mut *transaction)
        .await?;
        sqlx::query!(
            "UPDATE postrider.replays SET is_tidy = true WHERE tenant_id = $1 AND replay_id = $2",
            over.tenant_id,
            over.replay_id,
        )
        .execute(&mut *transaction)
        .await?;
    }
    transaction.commit().await?;
    Ok(true)
}

/// How many replays run.
pub async fn running(connection: &mut PgConnection) -> Result<i64, Error> {
    let running = sqlx::query_scalar!(
        r#"SELECT count(*) AS "running!" FROM postrider.replays WHERE ended_at IS NULL AND state = 'running'"#
    )
    .fetch_one(connection)
    .await?;
    Ok(running)
}
