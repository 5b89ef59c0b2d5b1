//! Replays as people ask for them. While one runs its counts are those of its endpoints, so that no batch has to write a
//! row that all of them share.

use postrider_core::id::{ReplayId, TenantId};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Replay, Skipped, Status};
use crate::{page::Slice, row};

struct Row {
    replay_id: Uuid,
    state: String,
    filter: String,
    matches: i32,
    is_full: bool,
    created_at: OffsetDateTime,
    expires_at: OffsetDateTime,
    started_at: Option<OffsetDateTime>,
    ended_at: Option<OffsetDateTime>,
    replayed: i32,
    not_dead_lettered: i32,
    died_again: i32,
    endpoint_deleted: i32,
    body_gone: i32,
    not_listed: i32,
}

/// One replay, or `None` when the tenant has no such replay.
pub async fn get(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    id: ReplayId,
) -> Result<Option<Replay>, sqlx::Error> {
    let rows = in_range(connection, tenant_id, id.as_uuid(), id.as_uuid(), 1).await?;
    Ok(rows.into_iter().next())
}

/// A tenant's replays, newest first.
pub async fn list(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    slice: Slice,
) -> Result<Vec<Replay>, sqlx::Error> {
    let last = slice.before.map_or(Uuid::max(), |before| Uuid::from_u128(before.as_u128().saturating_sub(1)));
    in_range(connection, tenant_id, Uuid::nil(), last, slice.rows).await
}

async fn in_range(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    first: Uuid,
    last: Uuid,
    limit: i64,
) -> Result<Vec<Replay>, sqlx::Error> {
    sqlx::query_as!(
        Row,
        r#"
        SELECT r.replay_id, r.filter, r.matches, r.is_full, r.created_at, r.expires_at, r.started_at,
               -- What has expired says so, also before that is written down.
               CASE WHEN r.state = 'previewed' AND r.expires_at <= now() THEN 'expired' ELSE r.state END AS "state!",
               CASE WHEN r.state = 'previewed' AND r.expires_at <= now() THEN r.expires_at ELSE r.ended_at END AS ended_at,
               coalesce(so_far.replayed, r.replayed) AS "replayed!",
               coalesce(so_far.not_dead_lettered, r.not_dead_lettered) AS "not_dead_lettered!",
               coalesce(so_far.died_again, r.died_again) AS "died_again!",
               coalesce(so_far.endpoint_deleted, r.endpoint_deleted) AS "endpoint_deleted!",
               coalesce(so_far.body_gone, r.body_gone) AS "body_gone!",
               coalesce(so_far.not_listed, r.not_listed) AS "not_listed!"
          FROM postrider.replays r
          LEFT JOIN LATERAL (
               SELECT sum(e.replayed)::int AS replayed, sum(e.not_dead_lettered)::int AS not_dead_lettered,
                      sum(e.died_again)::int AS died_again, sum(e.endpoint_deleted)::int AS endpoint_deleted,
                      sum(e.body_gone)::int AS body_gone, sum(e.not_listed)::int AS not_listed
                 FROM postrider.replay_endpoints e
                WHERE e.tenant_id = r.tenant_id AND e.replay_id = r.replay_id
          ) AS so_far ON r.state = 'running'
         WHERE r.tenant_id = $1 AND r.replay_id BETWEEN $2 AND $3
         ORDER BY r.replay_id DESC LIMIT $4
        "#,
        tenant_id.as_uuid(),
        first,
        last,
        limit,
    )
    .fetch_all(connection)
    .await?
    .into_iter()
    .map(Replay::try_from)
    .collect()
}

impl TryFrom<Row> for Replay {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        let status: Status = row::text("state", &row.state)?;
        Ok(Self {
            id: row.replay_id.into(),
            status,
            filter: row.filter,
            matches: row::number("matches", row.matches)?,
            is_full: row.is_full,
            created_at: row.created_at,
            expires_at: row.expires_at,
            started_at: row.started_at,
            ended_at: row.ended_at,
            replayed: row::number("replayed", row.replayed)?,
            skipped: Skipped {
                not_dead_lettered: row::number("not_dead_lettered", row.not_dead_lettered)?,
                died_again: row::number("died_again", row.died_again)?,
                endpoint_deleted: row::number("endpoint_deleted", row.endpoint_deleted)?,
                body_gone: row::number("body_gone", row.body_gone)?,
                not_listed: row::number("not_listed", row.not_listed)?,
            },
        })
    }
}
