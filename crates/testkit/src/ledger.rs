//! The ledger checker, which ends every fault test: what publishers were promised, what receivers got and what the
//! database says must agree.
//!
//! Invariants it proves: nothing accepted is lost; a repeated request carries the same delivery id and the same body;
//! what was refused left no event; no delivery is stuck past its lease and one poll; attempts are numbered without a
//! gap or a repeat; what counts as delivered was received; one key made one event.

mod breach;
mod evidence;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use postrider_core::{
    id::{DeliveryId, EventId},
    name::IdempotencyKey,
};
use sqlx::PgPool;

pub use breach::Breach;
pub use evidence::{Attempt, Ended, Event, Evidence, Keyed, Open};

use crate::receiver::Receiver;

/// A 2xx answer to a publisher.
#[derive(Debug, Clone)]
pub struct Accepted {
    pub event_id: EventId,
    /// The application's name and the key; keys of two applications never meet.
    pub key: Option<(String, IdempotencyKey)>,
    /// How many deliveries the answer promised.
    pub deliveries: u32,
    pub body: Bytes,
}

/// A request that a receiver got.
#[derive(Debug, Clone)]
pub struct Received {
    pub webhook_id: String,
    pub body: Bytes,
}

/// Both sides' own books.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    pub accepted: Vec<Accepted>,
    /// The ids that events would have had whose publishers were told that nothing was stored.
    pub refused: Vec<EventId>,
    pub received: Vec<Received>,
}

/// What the checker may expect of the moment it looks.
#[derive(Debug, Clone, Copy)]
pub struct Expectation {
    /// The longest interval between two looks at the database: maintenance and taking have had one.
    pub poll: Duration,
    /// Whether all work was given the time to end: then nothing may be open.
    pub everything_ended: bool,
}

/// What was counted where nothing was wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Events promised, each once.
    pub events: usize,
    /// Answers beyond the first for the same event.
    pub repeated_answers: usize,
    pub delivered: usize,
    pub dead_lettered: usize,
    pub open: usize,
    /// Requests beyond the first for the same delivery.
    pub repeated_requests: usize,
    pub attempts: usize,
    pub interrupted_attempts: usize,
}

impl Report {
    /// All deliveries, however they stand.
    pub const fn deliveries(&self) -> usize {
        self.delivered + self.dead_lettered + self.open
    }
}

impl Ledger {
    /// Deliveries that publishers were promised, those of each event once.
    pub fn promised_deliveries(&self) -> usize {
        let events: BTreeMap<EventId, u32> =
            self.accepted.iter().map(|accepted| (accepted.event_id, accepted.deliveries)).collect();
        events.values().map(|&deliveries| usize::try_from(deliveries).unwrap_or(usize::MAX)).sum()
    }

    /// Takes over what receivers got.
    #[must_use]
    pub fn with_receiver(mut self, receiver: &Receiver) -> Self {
        let requests = receiver.requests();
        self.received.extend(requests.iter().map(|request| Received {
            webhook_id: request.webhook_id().to_owned(),
            body: request.body.clone(),
        }));
        self
    }

    /// Compares the books with the database.
    pub fn breaches(&self, evidence: &Evidence, expectation: Expectation) -> Vec<Breach> {
        breach::find(self, evidence, expectation)
    }

    /// Compares the books with the database; panics with every breach, in words.
    #[track_caller]
    pub fn assert_sound(&self, evidence: &Evidence, expectation: Expectation) -> Report {
        let breaches = self.breaches(evidence, expectation);
        assert!(breaches.is_empty(), "{}", describe(&breaches));
        self.report(evidence)
    }

    /// Reads the database and compares; panics with every breach, in words.
    pub async fn check(&self, pool: &PgPool, expectation: Expectation) -> Report {
        let evidence = Evidence::read(pool).await.expect("the database can be read");
        self.assert_sound(&evidence, expectation)
    }

    /// Counts, whether or not anything is wrong.
    pub fn report(&self, evidence: &Evidence) -> Report {
        let mut answers: BTreeMap<EventId, usize> = BTreeMap::new();
        for accepted in &self.accepted {
            *answers.entry(accepted.event_id).or_default() += 1;
        }
        let mut requests: BTreeMap<&str, usize> = BTreeMap::new();
        for received in &self.received {
            *requests.entry(received.webhook_id.as_str()).or_default() += 1;
        }
        let delivered = evidence.ended.iter().filter(|ended| ended.is_delivered).count();
        Report {
            events: answers.len(),
            repeated_answers: self.accepted.len() - answers.len(),
            delivered,
            dead_lettered: evidence.ended.len() - delivered,
            open: evidence.open.len(),
            repeated_requests: self.received.len() - requests.len(),
            attempts: evidence.attempts.len(),
            interrupted_attempts: evidence
                .attempts
                .iter()
                .filter(|attempt| attempt.outcome == "interrupted")
                .count(),
        }
    }
}

/// The deliveries that an answer promised, by the numbering of places.
fn promised(event_id: EventId, deliveries: u32) -> impl Iterator<Item = DeliveryId> {
    let places = 1..=u16::try_from(deliveries).expect("an event has at most 65,535 deliveries");
    places.filter_map(std::num::NonZeroU16::new).map(move |place| event_id.delivery(place))
}

fn describe(breaches: &[Breach]) -> String {
    let lines: Vec<String> =
        breaches.iter().take(MOST_DESCRIBED).map(|breach| format!("  {breach}")).collect();
    format!("the ledgers do not agree: {} breaches\n{}", breaches.len(), lines.join("\n"))
}

/// Breaches that a failure lists; the count tells of the others.
const MOST_DESCRIBED: usize = 40;
