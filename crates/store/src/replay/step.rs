//! The execution, one endpoint's turn after the other: a turn moves a bounded number of its letters and counts them, in
//! one transaction.
//!
//! The row of the endpoint's progress is the lease: it stays locked until the transaction ends, so several processes work
//! on different endpoints, and one that dies leaves everything as it was before its turn. Letters are read behind the last
//! one that is done and never deleted meanwhile, so that no turn steps over what the ones before have left.

use std::{collections::HashMap, time::Duration};

use postrider_core::{
    delivery::DeadLettered,
    id::{DeliveryId, EndpointId, ReplayId, TenantId},
};
use sqlx::{Connection as _, PgConnection, PgTransaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::Skipped;
use crate::{
    endpoints::Rate,
    error::Error,
    failpoint::{self, Point},
    outbox::{self, Audience},
    reopen::{self, Letter, Ready, Terms},
    row,
};

/// What is counted of an endpoint's deliveries is counted up to here.
pub const COUNTED: u16 = 5_000;

/// A turn waits longer than its lane does otherwise: what a busy tenant has used is locked, batch after batch, by those who
/// store its events, and who waits there has his place in line.
const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = '2s'";

/// How much an endpoint has, and how much it takes.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub max_in_flight: u16,
    pub rate: Option<Rate>,
    /// Deliveries that wait for a worker, wherever they come from; [`COUNTED`] at most.
    pub pending: u16,
    /// Open deliveries that replays brought back, whatever they wait for; [`COUNTED`] at most.
    pub reopened: u16,
}

/// How many letters an endpoint gets in its turn, and when its next one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Portion {
    pub letters: u16,
    pub rest: Duration,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub tenant_id: TenantId,
    pub replay_id: ReplayId,
    pub endpoint_id: EndpointId,
    items_left: u32,
    done_to: Uuid,
}

/// One endpoint's turn, begun. Dropped, it changes nothing.
#[derive(Debug)]
#[must_use]
pub struct Step<'c> {
    transaction: PgTransaction<'c>,
    pub turn: Turn,
}

/// What a turn did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advanced {
    pub tenant_id: TenantId,
    pub endpoint_id: EndpointId,
    pub replayed: u32,
    pub skipped: Skipped,
    /// Since when what was replayed is pending; `None` where it is held.
    pub pending_since: Option<OffsetDateTime>,
    /// Letters of this endpoint that are left.
    pub left: u32,
}

struct Item {
    id: DeliveryId,
    attempt_number: u32,
    ended_at: OffsetDateTime,
}

/// Tenants that have a turn due, in the order of their ids, after the given one; `limit` at most.
pub async fn due_tenants(
    connection: &mut PgConnection,
    after: Option<TenantId>,
    limit: u16,
) -> Result<Vec<TenantId>, Error> {
    let due = sqlx::query_scalar!(
        r#"
        WITH RECURSIVE due AS (
            -- From one tenant's first entry to the next tenant's.
            (SELECT tenant_id, 1 AS found FROM postrider.replay_endpoints
              WHERE tenant_id > $1 AND due_at <= now()
              ORDER BY tenant_id, due_at LIMIT 1)
            UNION ALL
            SELECT next.tenant_id, due.found + 1 FROM due CROSS JOIN LATERAL (
                   SELECT tenant_id FROM postrider.replay_endpoints
                    WHERE tenant_id > due.tenant_id AND due_at <= now()
                    ORDER BY tenant_id, due_at LIMIT 1) AS next
             WHERE due.found < $2
        )
        SELECT tenant_id AS "tenant_id!" FROM due ORDER BY tenant_id
        "#,
        after.map_or(Uuid::nil(), TenantId::as_uuid),
        i32::from(limit),
    )
    .fetch_all(connection)
    .await?;
    Ok(due.into_iter().map(TenantId::from_uuid).collect())
}

/// Begins the turn of the endpoint that has waited longest in this tenant's replays, passing over those that another
/// process works on; `None` when none is due.
pub async fn next(connection: &mut PgConnection, tenant_id: TenantId) -> Result<Option<Step<'_>>, Error> {
    let mut transaction = connection.begin_with(BEGIN).await?;
    let due = sqlx::query!(
        "SELECT replay_id, endpoint_id, items_left, done_to FROM postrider.replay_endpoints
          WHERE tenant_id = $1 AND due_at <= now()
          ORDER BY due_at LIMIT 1
            FOR UPDATE SKIP LOCKED",
        tenant_id.as_uuid(),
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(due) = due else {
        // Dropped, it would stay open until the connection is used again.
        transaction.rollback().await?;
        return Ok(None);
    };
    let turn = Turn {
        tenant_id,
        replay_id: due.replay_id.into(),
        endpoint_id: due.endpoint_id.into(),
        items_left: row::number("items_left", due.items_left)?,
        done_to: due.done_to,
    };
    Ok(Some(Step { transaction, turn }))
}

/// Puts a turn off that could not be taken.
pub async fn postpone(connection: &mut PgConnection, turn: Turn, rest: Duration) -> Result<(), Error> {
    sqlx::query!(
        "UPDATE postrider.replay_endpoints SET due_at = statement_timestamp() + make_interval(secs => $4)
          WHERE tenant_id = $1 AND replay_id = $2 AND endpoint_id = $3 AND due_at IS NOT NULL",
        turn.tenant_id.as_uuid(),
        turn.replay_id.as_uuid(),
        turn.endpoint_id.as_uuid(),
        rest.as_secs_f64(),
    )
    .execute(connection)
    .await?;
    Ok(())
}

async fn load(
    transaction: &mut PgTransaction<'_>,
    endpoint_id: EndpointId,
    terms: &Terms,
) -> Result<Load, sqlx::Error> {
    let counted = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM (SELECT FROM postrider.delivery_queue
                    WHERE endpoint_id = $1 AND state = 'pending' LIMIT $2) AS waiting) AS "pending!",
                  (SELECT count(*) FROM (SELECT FROM postrider.delivery_queue
                    WHERE endpoint_id = $1 AND replay_id IS NOT NULL LIMIT $2) AS reopened) AS "reopened!""#,
        endpoint_id.as_uuid(),
        i64::from(COUNTED),
    )
    .fetch_one(&mut **transaction)
    .await?;
    Ok(Load {
        max_in_flight: terms.max_in_flight,
        rate: terms.rate,
        pending: row::number("pending", counted.pending)?,
        reopened: row::number("reopened", counted.reopened)?,
    })
}

impl Step<'_> {
    /// Takes the turn: does as many letters as `decide` says, or all that are left where the endpoint was deleted. What is
    /// pending then is announced in the same transaction.
    pub async fn advance(
        mut self,
        audience: Audience,
        decide: impl FnOnce(Load) -> Portion,
    ) -> Result<Advanced, Error> {
        let turn = self.turn;
        let transaction = &mut self.transaction;
        let mut advanced = Advanced {
            tenant_id: turn.tenant_id,
            endpoint_id: turn.endpoint_id,
            replayed: 0,
            skipped: Skipped::default(),
            pending_since: None,
            left: turn.items_left,
        };
        let mut written = Written { done_to: turn.done_to, rest: Duration::ZERO };
        if let Some(terms) = reopen::lock_terms(transaction, turn.tenant_id, turn.endpoint_id).await? {
            let portion = decide(load(transaction, turn.endpoint_id, &terms).await?);
            written.rest = portion.rest;
            if portion.letters > 0 {
                let brought = bring_back(transaction, &terms, portion.letters, turn, &mut advanced).await?;
                written.done_to = brought.done_to;
                if let Some(ready) = brought.ready {
                    outbox::announce(transaction, audience, &ready.deliveries).await?;
                    advanced.pending_since = Some(ready.since);
                }
            }
        } else {
            advanced.skipped.endpoint_deleted = turn.items_left;
            advanced.left = 0;
        }
        write(transaction, turn, &advanced, written).await?;
        failpoint::reach(Point::ReplayMoved).await;
        self.transaction.commit().await?;
        failpoint::reach(Point::ReplayCommitted).await;
        Ok(advanced)
    }
}

/// Where a turn leaves off, and until when.
struct Written {
    done_to: Uuid,
    rest: Duration,
}

/// How far the letters are done, and what is pending now.
struct Brought {
    done_to: Uuid,
    ready: Option<Ready>,
}

/// Does the next letters.
async fn bring_back(
    transaction: &mut PgTransaction<'_>,
    terms: &Terms,
    limit: u16,
    turn: Turn,
    advanced: &mut Advanced,
) -> Result<Brought, sqlx::Error> {
    let items = items(transaction, turn, limit).await?;
    let Some(last) = items.last() else {
        advanced.left = 0;
        return Ok(Brought { done_to: turn.done_to, ready: None });
    };
    let done = u32::try_from(items.len()).unwrap_or(u32::MAX);
    advanced.left = turn.items_left.saturating_sub(done);
    let letters = sort(transaction, terms, turn, &items, &mut advanced.skipped).await?;
    advanced.replayed = u32::try_from(letters.len()).unwrap_or(u32::MAX);
    let ready = if letters.is_empty() {
        None
    } else {
        reopen::reopen(transaction, turn.tenant_id, terms, &letters, Some(turn.replay_id)).await?
    };
    Ok(Brought { done_to: last.id.as_uuid(), ready })
}

async fn items(
    transaction: &mut PgTransaction<'_>,
    turn: Turn,
    limit: u16,
) -> Result<Vec<Item>, sqlx::Error> {
    let rows = sqlx::query!(
        "SELECT delivery_id, attempt_number, ended_at FROM postrider.replay_items
          WHERE replay_id = $1 AND endpoint_id = $2 AND delivery_id > $3
          ORDER BY delivery_id LIMIT $4",
        turn.replay_id.as_uuid(),
        turn.endpoint_id.as_uuid(),
        turn.done_to,
        i64::from(limit),
    )
    .fetch_all(&mut **transaction)
    .await?;
    rows.into_iter()
        .map(|row| {
            let attempt_number = row::number("attempt_number", row.attempt_number)?;
            Ok(Item { id: row.delivery_id.into(), attempt_number, ended_at: row.ended_at })
        })
        .collect()
}

/// Locks the letters and their events; returns those that are as they were seen and may go, and counts the others.
async fn sort(
    transaction: &mut PgTransaction<'_>,
    terms: &Terms,
    turn: Turn,
    items: &[Item],
    skipped: &mut Skipped,
) -> Result<Vec<DeadLettered>, sqlx::Error> {
    let ids: Vec<DeliveryId> = items.iter().map(|item| item.id).collect();
    let found = reopen::lock_letters(transaction, turn.tenant_id, &ids).await?;
    let found: HashMap<DeliveryId, Letter> =
        found.into_iter().map(|letter| (letter.dead.id, letter)).collect();
    let mut letters = Vec::with_capacity(items.len());
    for item in items {
        match found.get(&item.id) {
            None => skipped.not_dead_lettered += 1,
            Some(letter)
                if letter.dead.attempt_number != item.attempt_number || letter.ended_at != item.ended_at =>
            {
                skipped.died_again += 1;
            }
            Some(letter) if !terms.lists(letter.application_id) => skipped.not_listed += 1,
            Some(letter) => letters.push(letter.dead),
        }
    }
    let events: Vec<_> = letters.iter().map(|letter| letter.id.event()).collect();
    let events = reopen::lock_events(transaction, turn.tenant_id, &events).await?;
    letters.retain(|letter| {
        let has_body = events.contains(&letter.id.event());
        skipped.body_gone += u32::from(!has_body);
        has_body
    });
    Ok(letters)
}

async fn write(
    transaction: &mut PgTransaction<'_>,
    turn: Turn,
    advanced: &Advanced,
    written: Written,
) -> Result<(), sqlx::Error> {
    let count = |count: u32| row::number::<i32, _>("items_left", count);
    let skipped = advanced.skipped;
    sqlx::query!(
        "UPDATE postrider.replay_endpoints
            SET items_left = $4, done_to = $5,
                due_at = CASE WHEN $4 > 0 THEN statement_timestamp() + make_interval(secs => $6) END,
                replayed = replayed + $7, not_dead_lettered = not_dead_lettered + $8, died_again = died_again + $9,
                endpoint_deleted = endpoint_deleted + $10, body_gone = body_gone + $11,
                not_listed = not_listed + $12
          WHERE tenant_id = $1 AND replay_id = $2 AND endpoint_id = $3",
        turn.tenant_id.as_uuid(),
        turn.replay_id.as_uuid(),
        turn.endpoint_id.as_uuid(),
        count(advanced.left)?,
        written.done_to,
        written.rest.as_secs_f64(),
        count(advanced.replayed)?,
        count(skipped.not_dead_lettered)?,
        count(skipped.died_again)?,
        count(skipped.endpoint_deleted)?,
        count(skipped.body_gone)?,
        count(skipped.not_listed)?,
    )
    .execute(&mut **transaction)
    .await?;
    Ok(())
}
