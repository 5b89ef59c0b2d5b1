//! Reopen: dead letters go back into the queue under the same ids, one or many, all to one endpoint.
//!
//! What restarts and what goes on is decided by [`DeadLettered::replay`]; the statement here applies it, and requests are
//! signed under the endpoint's current key. Letters are locked in the order of their ids, then their events, so that of
//! two who move the same letters one waits, and then finds them gone. To an approved endpoint goes what the registry's list
//! allows when it is sent again, whatever it allowed when it was accepted; whoever applies a registry locks the endpoint, too.
//!
//! Each letter is looked up by itself: where statistics are older than an outage, the planner takes dead letters for so few
//! that it would rather read all of a tenant's, in each of a thousand batches.

use std::collections::HashSet;

use postrider_core::{
    delivery::{DeadLettered, Pending},
    id::{ApplicationId, DeliveryId, EndpointId, EventId, ReplayId, SigningKeyId, TenantId},
    queue::Pointer,
    retry::Policy,
};
use sqlx::PgTransaction;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    deliveries::dead_reason,
    endpoints::{PolicyColumns, Rate},
    quota, row,
};

/// A dead letter, locked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Letter {
    pub(crate) dead: DeadLettered,
    pub(crate) application_id: ApplicationId,
    pub(crate) endpoint_id: EndpointId,
    pub(crate) ended_at: OffsetDateTime,
}

/// What is pending again, since when, and as a message names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    pub since: OffsetDateTime,
    pub deliveries: Vec<Pointer>,
}

/// Under which terms deliveries to an endpoint begin anew; they hold until the transaction ends.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    endpoint_id: EndpointId,
    pub(crate) is_enabled: bool,
    pub(crate) max_in_flight: u16,
    pub(crate) rate: Option<Rate>,
    signing_key_id: SigningKeyId,
    policy: Policy,
    /// Whose letters may go there; `None` where the registry does not say.
    listed: Option<HashSet<ApplicationId>>,
    /// The time of the statement that locked the endpoint, which may have waited.
    now: OffsetDateTime,
}

impl Terms {
    /// Whether this application's letters may go there.
    pub(crate) fn lists(&self, application_id: ApplicationId) -> bool {
        self.listed.as_ref().is_none_or(|listed| listed.contains(&application_id))
    }
}

/// Locks those of the deliveries that are dead letters, and returns them in the order of their ids.
pub(crate) async fn lock_letters(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    ids: &[DeliveryId],
) -> Result<Vec<Letter>, sqlx::Error> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    let rows = sqlx::query!(
        r#"SELECT found.delivery_id AS "delivery_id!", found.application_id AS "application_id!",
                  found.endpoint_id AS "endpoint_id!", found.dead_reason AS "dead_reason!",
                  found.attempt_number AS "attempt_number!", found.ended_at AS "ended_at!"
             FROM (SELECT id FROM unnest($2::uuid[]) AS i (id) ORDER BY id) AS asked
            CROSS JOIN LATERAL (
                  SELECT delivery_id, application_id, endpoint_id, dead_reason, attempt_number, ended_at
                    FROM postrider.deliveries
                   WHERE tenant_id = $1 AND delivery_id = asked.id AND outcome = 'dead_lettered'
                   LIMIT 1 FOR UPDATE) AS found"#,
        tenant_id.as_uuid(),
        &ids,
    )
    .fetch_all(&mut **transaction)
    .await?;
    rows.into_iter()
        .map(|row| {
            let dead = DeadLettered {
                id: row.delivery_id.into(),
                attempt_number: row::number("attempt_number", row.attempt_number)?,
                reason: dead_reason(&row.dead_reason)?,
            };
            Ok(Letter {
                dead,
                application_id: row.application_id.into(),
                endpoint_id: row.endpoint_id.into(),
                ended_at: row.ended_at,
            })
        })
        .collect()
}

/// Locks those of the events that are still there. Whoever erases events locks them too: who comes second sees what the
/// first has done.
pub(crate) async fn lock_events(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    ids: &[EventId],
) -> Result<HashSet<EventId>, sqlx::Error> {
    let ids: Vec<Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    let found = sqlx::query_scalar!(
        r#"SELECT found.event_id AS "event_id!"
             FROM (SELECT DISTINCT id FROM unnest($2::uuid[]) AS i (id) ORDER BY id) AS asked
            CROSS JOIN LATERAL (
                  SELECT event_id FROM postrider.events WHERE tenant_id = $1 AND event_id = asked.id
                   LIMIT 1 FOR KEY SHARE) AS found"#,
        tenant_id.as_uuid(),
        &ids,
    )
    .fetch_all(&mut **transaction)
    .await?;
    Ok(found.into_iter().map(EventId::from_uuid).collect())
}

/// Keeps an endpoint as it is until the transaction ends; `None` if it was deleted.
pub(crate) async fn lock_terms(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    endpoint_id: EndpointId,
) -> Result<Option<Terms>, sqlx::Error> {
    let endpoint = sqlx::query!(
        r#"SELECT enabled, signing_key_id, max_in_flight, rate_per_second, rate_burst, approved,
                  max_attempts, max_age_seconds, initial_delay_ms, max_delay_ms, statement_timestamp() AS "now!"
             FROM postrider.endpoints
            WHERE tenant_id = $1 AND endpoint_id = $2 AND deleted_at IS NULL FOR SHARE"#,
        tenant_id.as_uuid(),
        endpoint_id.as_uuid(),
    )
    .fetch_optional(&mut **transaction)
    .await?;
    let Some(endpoint) = endpoint else { return Ok(None) };
    let listed =
        if endpoint.approved { Some(listed(transaction, tenant_id, endpoint_id).await?) } else { None };
    let columns = PolicyColumns {
        max_attempts: endpoint.max_attempts,
        max_age_seconds: endpoint.max_age_seconds,
        initial_delay_ms: endpoint.initial_delay_ms,
        max_delay_ms: endpoint.max_delay_ms,
    };
    let rate = endpoint.rate_per_second.zip(endpoint.rate_burst).map(|(per_second, burst)| {
        let burst: u32 = row::number("rate_burst", burst)?;
        Ok::<_, sqlx::Error>(Rate { per_second, burst: row::number("rate_burst", burst)? })
    });
    Ok(Some(Terms {
        endpoint_id,
        is_enabled: endpoint.enabled,
        max_in_flight: row::number("max_in_flight", endpoint.max_in_flight)?,
        rate: rate.transpose()?,
        signing_key_id: endpoint.signing_key_id.into(),
        policy: columns.policy()?,
        listed,
        now: endpoint.now,
    }))
}

/// Whom an approved endpoint lists, and its tenant's own sender of tests.
///
/// A statement of its own: it begins when the endpoint is locked, and so sees what those have done who had it before.
async fn listed(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    endpoint_id: EndpointId,
) -> Result<HashSet<ApplicationId>, sqlx::Error> {
    let ids = sqlx::query_scalar!(
        r#"SELECT application_id AS "listed!" FROM postrider.endpoint_applications
            WHERE tenant_id = $1 AND endpoint_id = $2
            UNION ALL
           SELECT application_id FROM postrider.applications WHERE tenant_id = $1 AND kind = 'system'"#,
        tenant_id.as_uuid(),
        endpoint_id.as_uuid(),
    )
    .fetch_all(&mut **transaction)
    .await?;
    Ok(ids.into_iter().map(ApplicationId::from_uuid).collect())
}

/// Moves locked letters of one endpoint from history to queue: `pending`, or `held` where the endpoint is disabled. What is
/// pending is returned.
pub(crate) async fn reopen(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    terms: &Terms,
    letters: &[DeadLettered],
    replay_id: Option<ReplayId>,
) -> Result<Option<Ready>, sqlx::Error> {
    let runs: Vec<_> = letters
        .iter()
        .map(|letter| {
            let Pending { run } = letter.replay(&terms.policy, terms.now);
            run
        })
        .collect();
    let ids: Vec<Uuid> = runs.iter().map(|run| run.id.as_uuid()).collect();
    let deadlines: Vec<OffsetDateTime> = runs.iter().map(|run| run.deadline).collect();
    let numbers = runs.iter().map(|run| row::number::<i32, _>("attempt_number", run.attempt_number));
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    let tries: Vec<i32> = runs.iter().map(|run| i32::from(run.tries)).collect();
    quota::note_reopened(transaction, tenant_id, letters.len() as u64).await?;
    let moved = sqlx::query!(
        r#"
        WITH reopened AS MATERIALIZED (
            SELECT r.*, held.location
              FROM unnest($2::uuid[], $3::timestamptz[], $4::int[], $5::int[])
                   AS r (delivery_id, deadline_at, attempt_number, tries)
             CROSS JOIN LATERAL (
                   SELECT ctid AS location FROM postrider.deliveries
                    WHERE tenant_id = $1 AND delivery_id = r.delivery_id AND outcome = 'dead_lettered'
                    LIMIT 1) AS held
        ), ended AS (
            -- They are locked, so they are where they were found; looked for by anything else they might be looked for
            -- among all that the tenant has.
            DELETE FROM postrider.deliveries d USING reopened r
             WHERE d.ctid = r.location
            RETURNING d.tenant_id, d.delivery_id, d.event_id, d.application_id, d.endpoint_id, d.accepted_at,
                      r.deadline_at, r.attempt_number, r.tries
        )
        INSERT INTO postrider.delivery_queue
               (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at,
                deadline_at, state, pending_since, attempt_number, tries, replay_id)
        SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id, $6, accepted_at,
               deadline_at, CASE WHEN $7 THEN 'pending' ELSE 'held' END, CASE WHEN $7 THEN $8::timestamptz END,
               attempt_number, tries, $9
          FROM ended
        "#,
        tenant_id.as_uuid(),
        &ids,
        &deadlines,
        &numbers,
        &tries,
        terms.signing_key_id.as_uuid(),
        terms.is_enabled,
        terms.now,
        replay_id.map(ReplayId::as_uuid),
    )
    .execute(&mut **transaction)
    .await?;
    if moved.rows_affected() != letters.len() as u64 {
        return Err(row::damaged("outcome", &"dead letters moved although they were locked"));
    }
    let deliveries = runs.iter().map(|run| Pointer {
        tenant_id,
        endpoint_id: terms.endpoint_id,
        delivery_id: run.id,
        attempt_number: run.attempt_number,
    });
    Ok(terms.is_enabled.then(|| Ready { since: terms.now, deliveries: deliveries.collect() }))
}
