//! What waits to be sent: counted now and then for those who accept events, and for people.
//!
//! Invariant: nobody counts on the way of an event. Publishers look at a [`Gate`], which is in memory; the statements here
//! are for its keeper and for metrics, who rest many times as long as a look took.

use std::{
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use postrider_core::{
    id::TenantId,
    overload::{Excess, Verdict},
    queue::Route,
};
use sqlx::{PgConnection, PgExecutor};

use crate::{error::Error, row};

/// Who is refused for what waits, as it was at the last look.
#[derive(Debug, Default)]
pub struct Gate {
    /// Whether anybody is: all that publishers look at while nobody is.
    is_closed: AtomicBool,
    verdict: RwLock<Verdict>,
}

/// Why a publisher is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its tenant has more waiting than its share.
    Tenant(Excess),
    /// So many deliveries wait for the broker.
    Everybody { waiting: u64 },
}

impl Gate {
    pub fn set(&self, verdict: Verdict) {
        let is_closed = verdict != Verdict::Nobody;
        *self.verdict.write().unwrap_or_else(PoisonError::into_inner) = verdict;
        self.is_closed.store(is_closed, Ordering::Release);
    }

    /// Why this tenant may not publish now, if so.
    pub fn refusal(&self, tenant_id: TenantId) -> Option<Refusal> {
        if !self.is_closed.load(Ordering::Acquire) {
            return None;
        }
        match &*self.verdict.read().unwrap_or_else(PoisonError::into_inner) {
            Verdict::Nobody => None,
            Verdict::Tenants(tenants) => tenants.get(&tenant_id).copied().map(Refusal::Tenant),
            Verdict::Everybody { waiting } => Some(Refusal::Everybody { waiting: *waiting }),
        }
    }
}

/// Whether at least so many deliveries are ready to be sent. Looks at no more of them than that.
pub async fn has_ready(connection: &mut PgConnection, at_least: u64) -> Result<bool, Error> {
    let at_least = i64::try_from(at_least).unwrap_or(i64::MAX);
    let counted = sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "ready!"
          FROM (SELECT FROM postrider.delivery_queue WHERE state = 'pending' LIMIT $1) AS found
        "#,
        at_least,
    )
    .fetch_one(connection)
    .await?;
    Ok(counted >= at_least)
}

/// What each tenant has ready to be sent, disabled endpoints included.
pub async fn ready_of_tenants(connection: &mut PgConnection) -> Result<Vec<(TenantId, u64)>, Error> {
    let rows = sqlx::query!(
        r#"
        SELECT tenant_id, count(*) AS "ready!"
          FROM postrider.delivery_queue WHERE state = 'pending' GROUP BY tenant_id
        "#
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|found| Ok((found.tenant_id.into(), row::number("ready", found.ready)?)))
        .collect::<Result<_, sqlx::Error>>()
        .map_err(Error::from)
}

/// Open deliveries, by their state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Open {
    pub ready: i64,
    pub in_flight: i64,
    pub scheduled: i64,
    pub held: i64,
    /// How long the first of those that are ready has been; zero where there is none.
    pub oldest_ready: Duration,
}

/// Counts what is open. Reads the whole queue, once.
pub async fn open(executor: impl PgExecutor<'_>) -> Result<Open, sqlx::Error> {
    let found = sqlx::query!(
        r#"
        SELECT count(*) FILTER (WHERE state = 'pending') AS "ready!",
               count(*) FILTER (WHERE state = 'in_flight') AS "in_flight!",
               count(*) FILTER (WHERE state = 'scheduled') AS "scheduled!",
               count(*) FILTER (WHERE state = 'held') AS "held!",
               coalesce(extract(epoch FROM clock_timestamp() - min(pending_since)), 0)::float8 AS "oldest_ready_s!"
          FROM postrider.delivery_queue
        "#
    )
    .fetch_one(executor)
    .await?;
    Ok(Open {
        ready: found.ready,
        in_flight: found.in_flight,
        scheduled: found.scheduled,
        held: found.held,
        oldest_ready: Duration::try_from_secs_f64(found.oldest_ready_s).unwrap_or_default(),
    })
}

/// Messages for the broker that it has not confirmed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outbox {
    pub messages: i64,
    /// Deliveries that they bring to workers; each is also counted where it stands in the queue. Dead letters, which are
    /// for people, are none of them.
    pub deliveries: u64,
    /// How long the first has waited; zero where there is none.
    pub oldest: Duration,
}

/// Counts what waits for the broker; of so many messages at most.
pub async fn outbox(executor: impl PgExecutor<'_>, at_most: u64) -> Result<Outbox, sqlx::Error> {
    let found = sqlx::query!(
        r#"
        SELECT count(*) AS "messages!", coalesce(sum(deliveries) FILTER (WHERE route <> $2), 0) AS "deliveries!",
               coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8 AS "oldest_s!"
          FROM (SELECT deliveries, route, created_at FROM postrider.outbox ORDER BY outbox_id DESC LIMIT $1) AS found
        "#,
        i64::try_from(at_most).unwrap_or(i64::MAX),
        Route::Dead.as_str(),
    )
    .fetch_one(executor)
    .await?;
    Ok(Outbox {
        messages: found.messages,
        deliveries: row::number("deliveries", found.deliveries)?,
        oldest: Duration::try_from_secs_f64(found.oldest_s).unwrap_or_default(),
    })
}
