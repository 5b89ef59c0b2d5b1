//! Counting what a tenant has open: a little of it at once by whoever has the tenant's row, and any amount of it apart.
//!
//! Invariant: a count apart is never too low, although nobody waits for it. What was opened before it began is in the queue
//! by then, or has ended; what was opened since is in the difference of what the row says was opened; and a delivery opened
//! in between is counted twice rather than not at all. A change of the quotas voids it.

use std::time::Duration;

use futures::TryFutureExt as _;
use postrider_core::id::TenantId;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Account, Counted, Known, Wanted};
use crate::{error::Error, lanes::bounded, row};

/// So many are counted at once, in a few milliseconds, while others wait for the tenant's row and its lane.
pub(crate) const AT_ONCE: u32 = 5_000;
/// Rows of one statement of a count apart, so that none holds a snapshot for long.
const CHUNK: u32 = 50_000;

/// Counts a tenant's open deliveries, whose row is locked, up to the `limit` that they are held against. `false`: there are
/// too many to count at once, and nothing has changed.
pub(crate) async fn count_at_once(
    connection: &mut PgConnection,
    account: &mut Account,
    limit: u64,
) -> Result<bool, sqlx::Error> {
    let most = u64::from(AT_ONCE).min(limit);
    let found = find(connection, account.tenant_id, Uuid::nil(), most).await?;
    if found.count == most && most < limit {
        return Ok(false);
    }
    // At the limit there may be more than were counted.
    account.usage.set_open((found.count < limit).then_some(found.count));
    account.counted = Some(Counted { at: found.at, took: found.took });
    Ok(true)
}

/// Counts what a tenant has open, up to what it is held against, and writes it down. Takes its row for a moment at the end.
///
/// Each statement is bounded, and not the whole: a count that was given up would begin again and be given up again.
pub async fn count(connection: &mut PgConnection, wanted: Wanted, known: &Known) -> Result<(), Error> {
    if count_apart(connection, wanted).await? {
        known.note(wanted.tenant_id);
    }
    Ok(())
}

/// `false`: the tenant's quotas were changed meanwhile.
async fn count_apart(
    connection: &mut PgConnection,
    Wanted { tenant_id, limit }: Wanted,
) -> Result<bool, Error> {
    let begun = sqlx::query!(
        r#"SELECT opened, changes, clock_timestamp() AS "at!" FROM postrider.tenant_usage WHERE tenant_id = $1"#,
        tenant_id.as_uuid(),
    );
    let begun = bounded(begun.fetch_optional(&mut *connection).map_err(Error::from)).await?;
    let Some(begun) = begun else { return Ok(false) };
    let (mut count, mut after) = (0, Uuid::nil());
    while count < limit {
        let most = u64::from(CHUNK).min(limit - count);
        let found = bounded(find(connection, tenant_id, after, most).map_err(Error::from)).await?;
        count += found.count;
        after = found.last;
        if found.count < most {
            break;
        }
    }
    // At the limit there may be more than were counted.
    let open = (count < limit).then(|| i64::try_from(count).unwrap_or(i64::MAX));
    let written = sqlx::query!(
        "UPDATE postrider.tenant_usage
            SET open_at_most = $2 + (opened - $3), counted_at = clock_timestamp(),
                count_seconds = extract(epoch FROM clock_timestamp() - $4)
          WHERE tenant_id = $1 AND changes = $5",
        tenant_id.as_uuid(),
        open,
        begun.opened,
        begun.at,
        begun.changes,
    );
    let written = bounded(written.execute(connection).map_err(Error::from)).await?;
    Ok(written.rows_affected() == 1)
}

/// What was found of the queue, the last of it, and how long that took.
struct Found {
    count: u64,
    last: Uuid,
    at: time::OffsetDateTime,
    took: Duration,
}

/// Looks at `most` open deliveries of a tenant, after one, in the order of the key.
async fn find(
    connection: &mut PgConnection,
    tenant_id: TenantId,
    after: Uuid,
    most: u64,
) -> Result<Found, sqlx::Error> {
    let found = sqlx::query!(
        r#"WITH found AS MATERIALIZED (
               -- In the order of the key, or the planner may find it cheaper to read what others have open.
               SELECT delivery_id FROM postrider.delivery_queue WHERE tenant_id = $1 AND delivery_id > $2
                ORDER BY delivery_id LIMIT $3)
           SELECT (SELECT count(*) FROM found) AS "count!",
                  (SELECT delivery_id FROM found ORDER BY delivery_id DESC LIMIT 1) AS last,
                  clock_timestamp() AS "at!",
                  extract(epoch FROM clock_timestamp() - statement_timestamp())::float8 AS "seconds!""#,
        tenant_id.as_uuid(),
        after,
        i64::try_from(most).unwrap_or(i64::MAX),
    )
    .fetch_one(connection)
    .await?;
    Ok(Found {
        count: row::number("count", found.count)?,
        last: found.last.unwrap_or(after),
        at: found.at,
        took: Duration::try_from_secs_f64(found.seconds).unwrap_or_default(),
    })
}
