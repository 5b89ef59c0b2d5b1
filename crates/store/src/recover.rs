//! Recover: take back deliveries whose lease is dead. The attempt becomes `interrupted`; the delivery is sent again.
//!
//! No index serves this: one on leases would tax every delivery (the rate falls to 0.92), while a pass over the open
//! deliveries is rare. The caller paces the passes by what they cost.

use std::time::Duration;

use postrider_core::{
    delivery::{InFlight, Interrupted, LeaseId, Run},
    id::{EndpointId, InstanceId},
    queue::Pointer,
    retry::DeadReason,
};
use sqlx::{PgConnection, PgTransaction};
use uuid::Uuid;

use crate::{
    endpoints::PolicyColumns,
    error::Error,
    outbox::{self, Audience},
    row,
};

/// Which leases are dead, besides those whose hard limit has passed.
#[derive(Debug)]
pub struct Dead<'a> {
    /// Owners that were declared dead.
    pub owners: &'a [InstanceId],
    /// This process, and the leases it knows it holds: one of its own that it does not know came from a commit whose
    /// answer was lost.
    pub me: InstanceId,
    pub known: &'a [LeaseId],
    /// Its own unknown leases count as dead from this age on: longer than any transaction that might still report.
    pub unknown_after: Duration,
}

/// What one pass did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    pub again: usize,
    pub dead_lettered: usize,
    /// Endpoints that now have pending work.
    pub endpoints: Vec<EndpointId>,
}

/// Recovers at most `limit` deliveries. Safe on all instances at once: rows that another one is working on are skipped.
pub async fn recover(
    connection: &mut PgConnection,
    dead: &Dead<'_>,
    audience: Audience,
    limit: u16,
) -> Result<Recovered, Error> {
    let mut transaction = sqlx::Connection::begin(connection).await?;
    let lost = find(&mut transaction, dead, limit).await?;
    let mut recovered = Recovered::default();
    if !lost.is_empty() {
        recovered.endpoints = apply(&mut transaction, &lost).await?;
        recovered.dead_lettered = lost.iter().filter(|lost| lost.dead_reason.is_some()).count();
        recovered.again = lost.len() - recovered.dead_lettered;
        let again = lost.iter().filter(|lost| lost.dead_reason.is_none());
        let ready: Vec<Pointer> = again.map(|lost| lost.pointer).collect();
        outbox::announce(&mut transaction, audience, &ready).await?;
        let ended = lost.iter().filter_map(|lost| Some((lost.pointer, lost.dead_reason?)));
        outbox::mirror(&mut transaction, audience, ended).await?;
    }
    transaction.commit().await?;
    Ok(recovered)
}

struct Lost {
    pointer: Pointer,
    dead_reason: Option<DeadReason>,
}

async fn find(transaction: &mut PgTransaction<'_>, dead: &Dead<'_>, limit: u16) -> Result<Vec<Lost>, Error> {
    let owners: Vec<Uuid> = dead.owners.iter().map(|id| id.as_uuid()).collect();
    let (known_deliveries, known_tokens): (Vec<Uuid>, Vec<Uuid>) =
        dead.known.iter().map(|lease| (lease.delivery_id.as_uuid(), lease.token.as_uuid())).unzip();
    let rows = sqlx::query!(
        r#"
        SELECT q.tenant_id, q.delivery_id, q.endpoint_id, q.attempt_number, q.tries, q.deadline_at, q.lease_token AS "lease_token!",
               e.max_attempts, e.max_age_seconds, e.initial_delay_ms, e.max_delay_ms
          FROM postrider.delivery_queue q JOIN postrider.endpoints e USING (endpoint_id)
         WHERE q.state = 'in_flight'
           AND (q.lease_until < now()
                OR q.lease_owner = ANY($1)
                OR (q.lease_owner = $2 AND q.leased_at < now() - make_interval(secs => $5)
                    AND (q.delivery_id, q.lease_token) NOT IN (SELECT * FROM unnest($3::uuid[], $4::uuid[]))))
         ORDER BY q.tenant_id, q.delivery_id
         LIMIT $6
           FOR UPDATE OF q SKIP LOCKED
        "#,
        &owners,
        dead.me.as_uuid(),
        &known_deliveries,
        &known_tokens,
        dead.unknown_after.as_secs_f64(),
        i64::from(limit),
    )
    .fetch_all(&mut **transaction)
    .await?;
    rows.into_iter()
        .map(|found| {
            let policy = PolicyColumns {
                max_attempts: found.max_attempts,
                max_age_seconds: found.max_age_seconds,
                initial_delay_ms: found.initial_delay_ms,
                max_delay_ms: found.max_delay_ms,
            }
            .policy()?;
            let run = Run {
                id: found.delivery_id.into(),
                attempt_number: row::number("attempt_number", found.attempt_number)?,
                tries: row::number("tries", found.tries)?,
                deadline: found.deadline_at,
            };
            let dead_reason = match (InFlight { run, token: found.lease_token.into() }).interrupt(&policy) {
                Interrupted::Pending(_) => None,
                Interrupted::DeadLettered(dead) => Some(dead.reason),
            };
            let pointer = Pointer {
                tenant_id: found.tenant_id.into(),
                endpoint_id: found.endpoint_id.into(),
                delivery_id: run.id,
                attempt_number: run.attempt_number,
            };
            Ok(Lost { pointer, dead_reason })
        })
        .collect::<Result<_, sqlx::Error>>()
        .map_err(Error::from)
}

async fn apply(transaction: &mut PgTransaction<'_>, lost: &[Lost]) -> Result<Vec<EndpointId>, Error> {
    let tenants: Vec<Uuid> = lost.iter().map(|lost| lost.pointer.tenant_id.as_uuid()).collect();
    let deliveries: Vec<Uuid> = lost.iter().map(|lost| lost.pointer.delivery_id.as_uuid()).collect();
    let reasons: Vec<Option<&str>> =
        lost.iter().map(|lost| lost.dead_reason.map(DeadReason::as_str)).collect();
    let endpoints = sqlx::query_scalar!(
        r#"
        WITH item AS MATERIALIZED (
            -- The rows are locked by this transaction, so what stands there now is what was judged.
            SELECT q.*, i.dead_reason
              FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS i (tenant_id, delivery_id, dead_reason)
             CROSS JOIN LATERAL (
                   SELECT ctid AS location, * FROM postrider.delivery_queue
                    WHERE tenant_id = i.tenant_id AND delivery_id = i.delivery_id AND state = 'in_flight'
                    LIMIT 1) AS q
        ), evidence AS (
            INSERT INTO postrider.attempts (tenant_id, delivery_id, attempt_number, outcome, started_at, ended_at)
            SELECT tenant_id, delivery_id, attempt_number, 'interrupted', leased_at, now() FROM item
        ), history AS (
            INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id,
                   signing_key_id, accepted_at, ended_at, outcome, dead_reason, attempt_number)
            SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
                   signing_key_id, accepted_at, now(), 'dead_lettered', dead_reason, attempt_number
              FROM item WHERE dead_reason IS NOT NULL
        ), ended AS (
            DELETE FROM postrider.delivery_queue q USING item
             WHERE q.ctid = item.location AND item.dead_reason IS NOT NULL
        ), again AS (
            UPDATE postrider.delivery_queue q
               SET state = 'pending', pending_since = now(),
                   lease_owner = NULL, lease_token = NULL, leased_at = NULL, lease_until = NULL
              FROM item
             WHERE q.ctid = item.location AND item.dead_reason IS NULL
            RETURNING q.endpoint_id
        )
        SELECT DISTINCT endpoint_id AS "endpoint_id!" FROM again
        "#,
        &tenants,
        &deliveries,
        &reasons as _,
    )
    .fetch_all(&mut **transaction)
    .await?;
    Ok(endpoints.into_iter().map(EndpointId::from_uuid).collect())
}
