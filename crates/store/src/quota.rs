//! What tenants with quotas have used: one row each, which is locked while events of the tenant are stored.
//!
//! Invariants:
//! - a tenant's row is locked before plans and after dead letters and endpoints, everywhere, and several rows in the order
//!   of their tenants, so that nobody waits in a circle;
//! - what a row says is never too low while the tenant has quotas: open deliveries are added where they are made, and
//!   their number is lowered by counting alone;
//! - whoever makes a tenant's row commits it under the lock of its list of applications, which all share who open deliveries
//!   again and find no row: what they open is in the queue before anybody counts.

mod count;
mod known;

use std::time::Duration;

use postrider_core::{
    id::TenantId,
    quota::{Demand, Minute, Usage},
};
use sqlx::{Connection as _, PgConnection, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

pub(crate) use self::count::{AT_ONCE, count_at_once};
pub use self::{
    count::count,
    known::{Known, Wanted},
};
use crate::row;

/// A count that does not help is repeated after this many times what it took.
const COUNT_PAUSE: u32 = 10;

/// A tenant's row, locked.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    pub(crate) tenant_id: TenantId,
    pub(crate) usage: Usage,
    /// Deliveries opened so far.
    opened: u64,
    counted: Option<Counted>,
}

/// When open deliveries were counted, by the database's clock, and how long that took.
#[derive(Debug, Clone, Copy)]
struct Counted {
    at: OffsetDateTime,
    took: Duration,
}

impl Account {
    /// Whether nobody has counted since the tenant had these quotas.
    pub(crate) const fn is_uncounted(&self) -> bool {
        self.counted.is_none() && self.usage.open_at_most().is_none()
    }

    /// An event was accepted.
    pub(crate) fn add(&mut self, demand: Demand, now: OffsetDateTime) {
        self.usage.add(demand, now);
        self.opened = self.opened.saturating_add(demand.deliveries);
    }

    /// Whether counting again may be worth it. Who waited for the row while somebody counted began before, and is to pause
    /// all the same; and a clock that was set back holds up no count for longer than that.
    pub(crate) fn may_be_counted(&self, now: OffsetDateTime) -> bool {
        self.counted.is_none_or(|Counted { at, took }| (now - at).unsigned_abs() >= took * COUNT_PAUSE)
    }
}

/// Locks the rows of tenants, which are sorted, and reads them. Those that have no row yet are left out.
///
/// A row is read as it is once its lock is held, whatever the statement's snapshot: what the transaction before has
/// written is in it.
pub(crate) async fn lock(
    connection: &mut PgConnection,
    tenants: &[TenantId],
) -> Result<Vec<(OffsetDateTime, Account)>, sqlx::Error> {
    let ids: Vec<Uuid> = tenants.iter().map(|id| id.as_uuid()).collect();
    let rows = sqlx::query!(
        r#"SELECT u.tenant_id, u.minutes, u.events, u.bytes, u.open_at_most, u.opened, u.counted_at,
                  u.count_seconds, now() AS "now!"
             FROM unnest($1::uuid[]) AS asked (tenant_id)
            -- One look into the index per tenant, and one lock after the other.
            CROSS JOIN LATERAL (SELECT * FROM postrider.tenant_usage
                                 WHERE tenant_id = asked.tenant_id LIMIT 1
                                   FOR NO KEY UPDATE) AS u"#,
        &ids,
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|row| {
            let counts = row.events.into_iter().zip(row.bytes);
            let minutes = row
                .minutes
                .into_iter()
                .zip(counts)
                .map(|(number, (events, bytes))| {
                    let (events, bytes) = (row::number("events", events)?, row::number("bytes", bytes)?);
                    Ok(Minute { number, events, bytes })
                })
                .collect::<Result<Vec<_>, sqlx::Error>>()?;
            let open = row.open_at_most.map(|open| row::number("open_at_most", open)).transpose()?;
            let counted = row.counted_at.zip(row.count_seconds);
            let account = Account {
                tenant_id: row.tenant_id.into(),
                usage: Usage::at(row.now, minutes, open),
                opened: row::number("opened", row.opened)?,
                counted: counted.map(|(at, seconds)| Counted {
                    at,
                    took: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
                }),
            };
            Ok((row.now, account))
        })
        .collect()
}

/// Makes the rows of tenants that have none. Not within a transaction that has locked any.
pub(crate) async fn open_accounts(
    connection: &mut PgConnection,
    tenants: &[TenantId],
) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let ids: Vec<Uuid> = tenants.iter().map(|id| id.as_uuid()).collect();
    sqlx::query!(
        "INSERT INTO postrider.tenant_usage (tenant_id)
         SELECT tenant_id FROM unnest($1::uuid[]) AS asked (tenant_id) ORDER BY tenant_id
             ON CONFLICT DO NOTHING",
        &ids,
    )
    .execute(&mut *transaction)
    .await?;
    for tenant_id in tenants {
        // What comes back meanwhile is written down nowhere, see `note_reopened`: it is committed first, to be counted.
        sqlx::query!("SELECT pg_advisory_xact_lock(postrider.plan_lock_key($1))", tenant_id.as_uuid())
            .fetch_one(&mut *transaction)
            .await?;
    }
    transaction.commit().await
}

/// Writes locked rows back.
pub(crate) async fn record(connection: &mut PgConnection, accounts: &[Account]) -> Result<(), sqlx::Error> {
    let big = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (mut firsts, mut lasts, mut end) = (Vec::new(), Vec::new(), 0_i32);
    let (mut minutes, mut events, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for account in accounts {
        firsts.push(end + 1);
        for minute in account.usage.minutes() {
            minutes.push(minute.number);
            events.push(big(minute.events));
            bytes.push(big(minute.bytes));
            end += 1;
        }
        lasts.push(end);
    }
    let tenants: Vec<Uuid> = accounts.iter().map(|account| account.tenant_id.as_uuid()).collect();
    let open: Vec<Option<i64>> =
        accounts.iter().map(|account| account.usage.open_at_most().map(big)).collect();
    let opened: Vec<i64> = accounts.iter().map(|account| big(account.opened)).collect();
    let counted_at: Vec<Option<OffsetDateTime>> =
        accounts.iter().map(|account| account.counted.map(|counted| counted.at)).collect();
    let took: Vec<Option<f64>> =
        accounts.iter().map(|account| account.counted.map(|counted| counted.took.as_secs_f64())).collect();
    sqlx::query!(
        // They are there, so this updates: whatever the planner thinks of the table, it looks into the index once for each.
        "INSERT INTO postrider.tenant_usage
                (tenant_id, minutes, events, bytes, open_at_most, opened, counted_at, count_seconds)
         SELECT tenant_id, ($1::int[])[first : last], ($2::bigint[])[first : last], ($3::bigint[])[first : last],
                open_at_most, opened, counted_at, count_seconds
           FROM unnest($4::uuid[], $5::int[], $6::int[], $7::bigint[], $8::bigint[], $9::timestamptz[], $10::float8[])
                    AS changed (tenant_id, first, last, open_at_most, opened, counted_at, count_seconds)
             ON CONFLICT (tenant_id) DO UPDATE
            SET minutes = excluded.minutes, events = excluded.events, bytes = excluded.bytes,
                open_at_most = excluded.open_at_most, opened = excluded.opened, counted_at = excluded.counted_at,
                count_seconds = excluded.count_seconds",
        &minutes,
        &events,
        &bytes,
        &tenants,
        &firsts,
        &lasts,
        &open as _,
        &opened,
        &counted_at as _,
        &took as _,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// So many deliveries of a tenant are opened again. They count against the quota and are never refused for it. A tenant
/// that never had quotas has nothing to write, and gets none until this is committed.
pub(crate) async fn note_reopened(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    count: u64,
) -> Result<(), sqlx::Error> {
    if add_reopened(transaction, tenant_id, count).await? {
        return Ok(());
    }
    // Whoever makes the tenant's row has this lock for himself before he commits: he waits for this, or is waited for.
    sqlx::query!("SELECT pg_advisory_xact_lock_shared(postrider.plan_lock_key($1))", tenant_id.as_uuid())
        .fetch_one(&mut **transaction)
        .await?;
    add_reopened(transaction, tenant_id, count).await?;
    Ok(())
}

/// `false`: the tenant has no row.
async fn add_reopened(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    count: u64,
) -> Result<bool, sqlx::Error> {
    let added = sqlx::query!(
        "UPDATE postrider.tenant_usage SET open_at_most = open_at_most + $2, opened = opened + $2 WHERE tenant_id = $1",
        tenant_id.as_uuid(),
        i64::try_from(count).unwrap_or(i64::MAX),
    )
    .execute(&mut **transaction)
    .await?;
    Ok(added.rows_affected() > 0)
}

/// Locks a tenant's row before its quotas are changed, and has its open deliveries counted anew: while there was no quota
/// nobody did.
pub(crate) async fn begin_change(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "INSERT INTO postrider.tenant_usage AS u (tenant_id) VALUES ($1)
             ON CONFLICT (tenant_id) DO UPDATE
            SET open_at_most = NULL, counted_at = NULL, count_seconds = NULL, changes = u.changes + 1",
        tenant_id.as_uuid(),
    )
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_repeated_after_a_pause_and_not_by_who_waited_for_it() {
        let (at, took) = (OffsetDateTime::UNIX_EPOCH, Duration::from_secs(1));
        let account = |counted| Account {
            tenant_id: Uuid::nil().into(),
            usage: Usage::at(at, Vec::new(), None),
            opened: 0,
            counted,
        };
        assert!(account(None).may_be_counted(at));
        for (seconds, expected) in [(0, false), (9, false), (10, true), (-1, false), (-3_600, true)] {
            let now = at + time::Duration::seconds(seconds);
            assert_eq!(account(Some(Counted { at, took })).may_be_counted(now), expected, "{seconds}");
        }
    }
}
