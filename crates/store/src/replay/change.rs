//! What a person decides about a replay: that it runs, and that it runs no more. Both lock its row first, so of two who
//! decide at once the second sees what the first did.

use postrider_core::id::{ReplayId, TenantId};
use sqlx::PgTransaction;

use super::{Error, Status};
use crate::row;

/// Lets a preview run, once. Workers find it at their next look, within a second.
pub async fn execute(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: ReplayId,
) -> Result<(), Error> {
    match lock(transaction, tenant_id, id).await? {
        Status::Previewed => {}
        Status::Running | Status::Finished => return Err(Error::Executed),
        Status::Expired => return Err(Error::Expired),
        Status::Cancelled => return Err(Error::Over),
    }
    sqlx::query!(
        "UPDATE postrider.replays SET state = 'running', started_at = statement_timestamp()
          WHERE tenant_id = $1 AND replay_id = $2 AND state = 'previewed'",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .execute(&mut **transaction)
    .await?;
    sqlx::query!(
        "UPDATE postrider.replay_endpoints SET due_at = statement_timestamp()
          WHERE tenant_id = $1 AND replay_id = $2",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

/// Ends a replay that runs, or a preview that nobody wants to run. Letters that are back in the queue stay there.
pub async fn cancel(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: ReplayId,
) -> Result<(), Error> {
    match lock(transaction, tenant_id, id).await? {
        Status::Previewed | Status::Running => {}
        Status::Expired => return Err(Error::Expired),
        Status::Finished | Status::Cancelled => return Err(Error::Over),
    }
    // Waits for batches that are under way, and lets no other begin.
    sqlx::query!(
        "UPDATE postrider.replay_endpoints SET due_at = NULL
          WHERE tenant_id = $1 AND replay_id = $2 AND due_at IS NOT NULL",
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .execute(&mut **transaction)
    .await?;
    close(transaction, tenant_id, id, Status::Cancelled).await?;
    Ok(())
}

/// Ends a replay with what its endpoints have counted. `false`: it was over before.
pub(super) async fn close(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: ReplayId,
    status: Status,
) -> Result<bool, sqlx::Error> {
    let closed = sqlx::query!(
        "UPDATE postrider.replays r
            SET state = $3, ended_at = statement_timestamp(), replayed = total.replayed,
                not_dead_lettered = total.not_dead_lettered, died_again = total.died_again,
                endpoint_deleted = total.endpoint_deleted, body_gone = total.body_gone,
                not_listed = total.not_listed
           FROM (SELECT coalesce(sum(replayed), 0)::int AS replayed,
                        coalesce(sum(not_dead_lettered), 0)::int AS not_dead_lettered,
                        coalesce(sum(died_again), 0)::int AS died_again,
                        coalesce(sum(endpoint_deleted), 0)::int AS endpoint_deleted,
                        coalesce(sum(body_gone), 0)::int AS body_gone,
                        coalesce(sum(not_listed), 0)::int AS not_listed
                   FROM postrider.replay_endpoints WHERE tenant_id = $1 AND replay_id = $2) AS total
          WHERE r.tenant_id = $1 AND r.replay_id = $2 AND r.ended_at IS NULL",
        tenant_id.as_uuid(),
        id.as_uuid(),
        status.as_str(),
    )
    .execute(&mut **transaction)
    .await?;
    Ok(closed.rows_affected() == 1)
}

async fn lock(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    id: ReplayId,
) -> Result<Status, Error> {
    let found = sqlx::query!(
        r#"SELECT state, expires_at <= statement_timestamp() AS "is_late!" FROM postrider.replays
            WHERE tenant_id = $1 AND replay_id = $2 FOR UPDATE"#,
        tenant_id.as_uuid(),
        id.as_uuid(),
    )
    .fetch_optional(&mut **transaction)
    .await?;
    let found = found.ok_or(Error::NotFound)?;
    Ok(match row::text("state", &found.state)? {
        Status::Previewed if found.is_late => Status::Expired,
        status => status,
    })
}
