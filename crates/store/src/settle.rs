//! Settle: write what came of many attempts in one statement.
//!
//! Invariant: a result counts only while its lease does. Every row names the state it leaves and the token it holds; one
//! whose lease was taken over changes nothing, and its caller is told so.

use std::time::Duration;

use postrider_core::{
    delivery::{DeadLettered, Delivered, InFlight, Next, Scheduled},
    id::{DeliveryId, LeaseToken, TenantId},
    retry::DeadReason,
};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::error::Error;

/// One attempt that ended.
#[derive(Debug, Clone)]
pub struct Settlement {
    pub tenant_id: TenantId,
    pub delivery_id: DeliveryId,
    pub token: LeaseToken,
    pub result: Result,
}

#[derive(Debug, Clone)]
pub enum Result {
    /// A request was made.
    Attempted { attempt: Attempt, next: Next },
    /// No request was made: the delivery goes back as if it had never been claimed.
    Released,
}

/// The evidence of an attempt.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// How long ago it started; a length, since this process's clock may differ from the database's.
    pub started_ago: Duration,
    pub latency: Duration,
    pub status: Option<u16>,
    /// The kind of failure, as `retry::FailureKind` names it, and the reason in plain words.
    pub failure: Option<(&'static str, String)>,
}

impl Settlement {
    /// The result of an attempt at `delivery`.
    pub fn attempted(tenant_id: TenantId, delivery: &InFlight, attempt: Attempt, next: Next) -> Self {
        let result = Result::Attempted { attempt, next };
        Self { tenant_id, delivery_id: delivery.run.id, token: delivery.token, result }
    }

    /// `delivery` goes back unsent.
    pub fn released(tenant_id: TenantId, delivery: &InFlight) -> Self {
        Self { tenant_id, delivery_id: delivery.run.id, token: delivery.token, result: Result::Released }
    }
}

/// Writes a batch; one transaction, one round trip. The answer tells, in the order of the batch, which rows still held
/// their lease.
pub async fn settle(
    connection: &mut PgConnection,
    settlements: &[Settlement],
) -> std::result::Result<Vec<bool>, Error> {
    let columns = Columns::of(settlements);
    let settled = sqlx::query_scalar!(
        r#"
        WITH item AS MATERIALIZED (
            SELECT * FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::uuid[], $5::text[], $6::float8[], $7::text[],
                                 $8::float8[], $9::int[], $10::smallint[], $11::text[], $12::text[])
                AS item (place, tenant_id, delivery_id, token, verdict, delay_seconds, dead_reason,
                         started_seconds_ago, latency_ms, status_code, failure, detail)
        ), ended AS (
            DELETE FROM postrider.delivery_queue q USING item
             WHERE q.tenant_id = item.tenant_id AND q.delivery_id = item.delivery_id
               AND q.state = 'in_flight' AND q.lease_token = item.token
               AND item.verdict IN ('delivered', 'dead_lettered')
            RETURNING q.tenant_id, q.delivery_id, q.event_id, q.application_id, q.endpoint_id, q.signing_key_id,
                      q.accepted_at, q.attempt_number, item.place, item.verdict, item.dead_reason,
                      item.started_seconds_ago, item.latency_ms, item.status_code, item.failure, item.detail
        ), rescheduled AS (
            UPDATE postrider.delivery_queue q
               SET state = 'scheduled', due_at = now() + make_interval(secs => item.delay_seconds),
                   lease_owner = NULL, lease_token = NULL, leased_at = NULL, lease_until = NULL
              FROM item
             WHERE q.tenant_id = item.tenant_id AND q.delivery_id = item.delivery_id
               AND q.state = 'in_flight' AND q.lease_token = item.token
               AND item.verdict = 'scheduled'
            RETURNING q.tenant_id, q.delivery_id, q.attempt_number, item.place, item.verdict,
                      item.started_seconds_ago, item.latency_ms, item.status_code, item.failure, item.detail
        ), released AS (
            UPDATE postrider.delivery_queue q
               SET state = 'pending', pending_since = now(),
                   attempt_number = q.attempt_number - 1, tries = q.tries - 1,
                   lease_owner = NULL, lease_token = NULL, leased_at = NULL, lease_until = NULL
              FROM item
             WHERE q.tenant_id = item.tenant_id AND q.delivery_id = item.delivery_id
               AND q.state = 'in_flight' AND q.lease_token = item.token
               AND item.verdict = 'released'
            RETURNING item.place
        ), history AS (
            INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id,
                   signing_key_id, accepted_at, ended_at, outcome, dead_reason, attempt_number)
            SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
                   signing_key_id, accepted_at, now(), verdict, dead_reason, attempt_number
              FROM ended
        ), evidence AS (
            INSERT INTO postrider.attempts (tenant_id, delivery_id, attempt_number, outcome, started_at, ended_at,
                   latency_ms, status_code, failure, detail)
            SELECT tenant_id, delivery_id, attempt_number, verdict,
                   now() - make_interval(secs => started_seconds_ago),
                   now() - make_interval(secs => started_seconds_ago) + make_interval(secs => latency_ms / 1000.0),
                   latency_ms, status_code, failure, detail
              FROM (SELECT tenant_id, delivery_id, attempt_number, verdict, started_seconds_ago, latency_ms,
                           status_code, failure, detail FROM ended
                    UNION ALL
                    SELECT tenant_id, delivery_id, attempt_number, verdict, started_seconds_ago, latency_ms,
                           status_code, failure, detail FROM rescheduled) AS attempted
        )
        SELECT place AS "place!" FROM ended
        UNION ALL SELECT place FROM rescheduled
        UNION ALL SELECT place FROM released
        "#,
        &columns.places,
        &columns.tenants,
        &columns.deliveries,
        &columns.tokens,
        &columns.verdicts as _,
        &columns.delays,
        &columns.dead_reasons as _,
        &columns.started,
        &columns.latencies as _,
        &columns.statuses as _,
        &columns.failures as _,
        &columns.details as _,
    )
    .fetch_all(connection)
    .await?;
    let mut held = vec![false; settlements.len()];
    for place in settled {
        if let Some(slot) = usize::try_from(place).ok().and_then(|place| held.get_mut(place)) {
            *slot = true;
        }
    }
    Ok(held)
}

/// One array per column, sorted by delivery: every statement that locks several queue rows does so in this order.
#[derive(Default)]
struct Columns<'a> {
    places: Vec<i32>,
    tenants: Vec<Uuid>,
    deliveries: Vec<Uuid>,
    tokens: Vec<Uuid>,
    verdicts: Vec<&'static str>,
    delays: Vec<f64>,
    dead_reasons: Vec<Option<&'static str>>,
    started: Vec<f64>,
    latencies: Vec<Option<i32>>,
    statuses: Vec<Option<i16>>,
    failures: Vec<Option<&'static str>>,
    details: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    fn of(settlements: &'a [Settlement]) -> Self {
        let mut sorted: Vec<(i32, &Settlement)> = (0..).zip(settlements).collect();
        sorted.sort_unstable_by_key(|(_, settlement)| (settlement.tenant_id, settlement.delivery_id));
        let mut columns = Self::default();
        for (place, settlement) in sorted {
            columns.places.push(place);
            columns.tenants.push(settlement.tenant_id.as_uuid());
            columns.deliveries.push(settlement.delivery_id.as_uuid());
            columns.tokens.push(settlement.token.as_uuid());
            columns.push_result(&settlement.result);
        }
        columns
    }

    fn push_result(&mut self, result: &'a Result) {
        let (verdict, delay, dead_reason) = match result {
            Result::Attempted { next: Next::Delivered(Delivered { .. }), .. } => {
                ("delivered", Duration::ZERO, None)
            }
            Result::Attempted { next: Next::Scheduled(Scheduled { delay, .. }), .. } => {
                ("scheduled", *delay, None)
            }
            Result::Attempted { next: Next::DeadLettered(DeadLettered { reason, .. }), .. } => {
                ("dead_lettered", Duration::ZERO, Some(DeadReason::as_str(*reason)))
            }
            Result::Released => ("released", Duration::ZERO, None),
        };
        self.verdicts.push(verdict);
        self.delays.push(delay.as_secs_f64());
        self.dead_reasons.push(dead_reason);
        let attempt = match result {
            Result::Attempted { attempt, .. } => Some(attempt),
            Result::Released => None,
        };
        self.started.push(attempt.map_or(0.0, |attempt| attempt.started_ago.as_secs_f64()));
        self.latencies
            .push(attempt.map(|attempt| i32::try_from(attempt.latency.as_millis()).unwrap_or(i32::MAX)));
        self.statuses
            .push(attempt.and_then(|attempt| attempt.status).and_then(|status| i16::try_from(status).ok()));
        let failure = attempt.and_then(|attempt| attempt.failure.as_ref());
        self.failures.push(failure.map(|(kind, _)| *kind));
        self.details.push(failure.map(|(_, detail)| detail.as_str()));
    }
}
