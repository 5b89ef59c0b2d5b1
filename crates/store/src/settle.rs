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
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::{
    error::Error,
    outbox::{self, Message},
};

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
    /// No request was made: the claim does not count as an attempt, and the delivery goes to the back of its endpoint's
    /// line.
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
    /// The registry's version that an approved endpoint had when it was asked.
    pub registry_version: Option<i64>,
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
    settlements: &[&Settlement],
) -> std::result::Result<Vec<bool>, Error> {
    let columns = Columns::of(settlements);
    let settled = sqlx::query_file_scalar!(
        "src/settle/settle.sql",
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
        &columns.registry_versions as _,
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

/// Writes a batch as [`settle`] does, and in the same transaction the messages to the broker that follow from it:
/// `announce` is told which rows still held their lease.
pub async fn settle_announcing(
    connection: &mut PgConnection,
    settlements: &[&Settlement],
    announce: impl FnOnce(&[bool]) -> Vec<Message>,
) -> std::result::Result<Vec<bool>, Error> {
    let mut transaction = connection.begin().await?;
    let held = settle(&mut transaction, settlements).await?;
    outbox::add(&mut transaction, &announce(&held)).await?;
    transaction.commit().await?;
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
    registry_versions: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    fn of(settlements: &[&'a Settlement]) -> Self {
        let mut sorted: Vec<(i32, &Settlement)> = (0..).zip(settlements.iter().copied()).collect();
        sorted.sort_unstable_by_key(|(_, settlement)| (settlement.tenant_id, settlement.delivery_id));
        let mut columns = Self::default();
        for (place, settlement) in sorted {
            columns.places.push(place);
            columns.tenants.push(settlement.tenant_id.as_uuid());
            columns.deliveries.push(settlement.delivery_id.as_uuid());
            columns.tokens.push(settlement.token.as_uuid());
            columns.push_result(&settlement.result);
        }
        trim(&mut columns.dead_reasons);
        trim(&mut columns.failures);
        trim(&mut columns.details);
        trim(&mut columns.registry_versions);
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
        self.registry_versions.push(attempt.and_then(|attempt| attempt.registry_version));
    }
}

/// Leaves off what `unnest` adds again: it fills up short columns with NULL. Mostly that is the whole column.
fn trim<V>(column: &mut Vec<Option<V>>) {
    let length = column.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    column.truncate(length);
}
