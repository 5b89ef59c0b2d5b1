//! The preview: remembers the dead letters that match a filter, as they are at one moment.
//!
//! Bounded by [`MAX_LETTERS`] and by the time that a statement of an edit may take; one that takes longer leaves nothing
//! behind. A tenant's previews are made one after the other, so that their bound is exact.

use postrider_core::{
    id::{DeliveryId, ReplayId, TenantId},
    name::{EventTypePattern, Name},
    retry::DeadReason,
};
use sqlx::PgTransaction;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Error, LIFETIME, MAX_LETTERS, MAX_OPEN, MAX_UNTIDY, Replay, read};
use crate::{row, time_range::TimeRange};

/// Which dead letters are wanted; `None` means any. Those that cannot be sent again never are.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub application: Option<Name>,
    pub endpoint: Option<Name>,
    pub event_types: Option<EventTypePattern>,
    pub dead_reason: Option<DeadReason>,
    /// Accepted at or after.
    pub since: Option<OffsetDateTime>,
    /// Accepted before.
    pub until: Option<OffsetDateTime>,
    pub ids: Option<Vec<DeliveryId>>,
}

/// A preview to make.
#[derive(Debug, Clone, Copy)]
pub struct NewReplay<'a> {
    pub id: ReplayId,
    pub filter: &'a Filter,
    /// The filter as JSON, to be shown again.
    pub filter_text: &'a str,
    /// Most letters: [`MAX_LETTERS`], or fewer.
    pub most: u32,
}

/// Makes a preview and returns it with the ids of its `sample` oldest letters.
pub async fn preview(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    new: NewReplay<'_>,
    sample: u16,
) -> Result<(Replay, Vec<DeliveryId>), Error> {
    require_room(transaction, tenant_id).await?;
    let most = new.most.min(MAX_LETTERS);
    let matches = find(transaction, tenant_id, new, most).await?;
    sqlx::query!(
        "INSERT INTO postrider.replays (tenant_id, replay_id, state, filter, matches, is_full, created_at, expires_at)
         VALUES ($1, $2, 'previewed', $3, $4, $5, statement_timestamp(), statement_timestamp() + make_interval(secs => $6))",
        tenant_id.as_uuid(),
        new.id.as_uuid(),
        new.filter_text,
        row::number::<i32, _>("matches", matches)?,
        matches >= most,
        LIFETIME.as_secs_f64(),
    )
    .execute(&mut **transaction)
    .await?;
    let oldest = sqlx::query_scalar!(
        "SELECT delivery_id FROM postrider.replay_items WHERE tenant_id = $1 AND replay_id = $2
          ORDER BY delivery_id LIMIT $3",
        tenant_id.as_uuid(),
        new.id.as_uuid(),
        i64::from(sample),
    )
    .fetch_all(&mut **transaction)
    .await?;
    let replay = read::get(transaction, tenant_id, new.id).await?.ok_or(Error::NotFound)?;
    Ok((replay, oldest.into_iter().map(DeliveryId::from_uuid).collect()))
}

/// Whoever previews for this tenant waits here for whoever did before, and counts what that one made. The lock is nobody
/// else's: a preview takes seconds, and a key that is to be revoked must not wait for it.
async fn require_room(transaction: &mut PgTransaction<'_>, tenant_id: TenantId) -> Result<(), Error> {
    sqlx::query!("SELECT pg_advisory_xact_lock(postrider.preview_lock_key($1))", tenant_id.as_uuid())
        .execute(&mut **transaction)
        .await?;
    let counted = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM postrider.replays
                    WHERE tenant_id = $1 AND ended_at IS NULL
                      AND (state <> 'previewed' OR expires_at > now())) AS "open!",
                  (SELECT count(*) FROM postrider.replays
                    WHERE tenant_id = $1 AND ended_at IS NOT NULL AND NOT is_tidy) AS "untidy!""#,
        tenant_id.as_uuid(),
    )
    .fetch_one(&mut **transaction)
    .await?;
    if counted.open >= i64::from(MAX_OPEN) {
        return Err(Error::TooManyOpen);
    }
    if counted.untidy >= i64::from(MAX_UNTIDY) {
        return Err(Error::TooManyUntidy);
    }
    Ok(())
}

/// The answer counts the letters.
async fn find(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    new: NewReplay<'_>,
    most: u32,
) -> Result<u32, sqlx::Error> {
    let Filter { application, endpoint, event_types, dead_reason, since, until, ids } = new.filter;
    let (first, last) = TimeRange { since: *since, until: *until }.ids_below(None);
    let pattern = event_types.as_ref().map(EventTypePattern::as_str);
    let beginning = pattern.and_then(|pattern| pattern.strip_suffix('*'));
    let exact = pattern.filter(|_| beginning.is_none());
    // `*` asks nothing of an event.
    let beginning = beginning.filter(|beginning| !beginning.is_empty());
    let reasons = DeadReason::ALL.iter().filter(|reason| reason.is_replayable());
    let reasons = reasons.filter(|reason| dead_reason.is_none_or(|wanted| wanted == **reason));
    let reasons: Vec<String> = reasons.map(|reason| reason.as_str().to_owned()).collect();
    let ids: Option<Vec<Uuid>> = ids.as_ref().map(|ids| ids.iter().map(|id| id.as_uuid()).collect());
    let counts = sqlx::query_file_scalar!(
        "src/replay/preview.sql",
        tenant_id.as_uuid(),
        new.id.as_uuid(),
        application.as_ref().map(Name::as_str),
        endpoint.as_ref().map(Name::as_str),
        first,
        last,
        *since,
        *until,
        exact,
        beginning,
        &reasons,
        ids.as_deref() as _,
        i64::from(most),
    )
    .fetch_all(&mut **transaction)
    .await?;
    row::number("items_left", counts.into_iter().map(i64::from).sum::<i64>())
}
