//! What can be wrong between the ledgers, and how each is found. Pure: it compares what was read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use postrider_core::id::{DeliveryId, EndpointId, EventId};

use super::{
    Accepted, Evidence, Expectation, Ledger,
    evidence::{Attempt, Open},
    promised,
};

/// One disagreement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    #[error("{0} was accepted, but there is no such event")]
    EventLost(EventId),
    #[error("{0} was refused, but is stored")]
    RefusedButStored(EventId),
    #[error("{0} was accepted with another body than the one that is stored")]
    BodyChanged(EventId),
    #[error("{event} was accepted with {promised} deliveries, but {stored} are stored")]
    DeliveryCount { event: EventId, promised: u32, stored: i32 },
    #[error("{0} was promised, but is neither open nor ended")]
    DeliveryLost(DeliveryId),
    #[error("{0} is open and ended at once")]
    DeliveryTwice(DeliveryId),
    #[error("{event} has more than one delivery to {endpoint}")]
    EndpointTwice { event: EventId, endpoint: EndpointId },
    #[error("the key `{key}` of `{application}` was answered with {first} and with {second}")]
    KeyAnsweredTwice { application: String, key: String, first: EventId, second: EventId },
    #[error("the key `{key}` of `{application}` was answered with {answered}, but is stored for {stored:?}")]
    KeyStoredOtherwise { application: String, key: String, answered: EventId, stored: Option<EventId> },
    #[error("a receiver got `{0}`, which is no delivery's id")]
    UnknownRequest(String),
    #[error("a receiver got {0} with another body than its event's")]
    RequestBody(DeliveryId),
    #[error("{0} counts as delivered, but no receiver got it")]
    NeverReceived(DeliveryId),
    #[error("{0} is in flight, though its lease ended longer than one poll ago")]
    StuckInFlight(DeliveryId),
    #[error("{0} is scheduled, though it came due longer than one poll ago")]
    StuckScheduled(DeliveryId),
    #[error("{delivery} is still {state}, though everything should have ended")]
    StillOpen { delivery: DeliveryId, state: String },
    #[error("{delivery} should have the attempts 1 to {expected}, but has {found:?}")]
    AttemptNumbers { delivery: DeliveryId, expected: i32, found: Vec<i32> },
    #[error("{delivery} counts as delivered, but its attempts say {found:?}")]
    AttemptOutcomes { delivery: DeliveryId, found: Vec<String> },
    #[error("there are attempts of {0}, which is no delivery")]
    OrphanedAttempts(DeliveryId),
}

/// Everything that is wrong, in the order in which it would be looked into.
pub(super) fn find(ledger: &Ledger, evidence: &Evidence, expectation: Expectation) -> Vec<Breach> {
    let mut breaches = Vec::new();
    accepted(ledger, evidence, &mut breaches);
    keys(ledger, evidence, &mut breaches);
    places(evidence, &mut breaches);
    requests(ledger, evidence, &mut breaches);
    stuck(evidence, expectation, &mut breaches);
    attempts(evidence, &mut breaches);
    breaches
}

fn accepted(ledger: &Ledger, evidence: &Evidence, breaches: &mut Vec<Breach>) {
    let events: HashMap<EventId, _> = evidence.events.iter().map(|event| (event.id, event)).collect();
    let known: BTreeSet<DeliveryId> = deliveries(evidence).map(|(delivery, _)| delivery).collect();
    let distinct: BTreeMap<EventId, &Accepted> =
        ledger.accepted.iter().map(|accepted| (accepted.event_id, accepted)).collect();
    for (&event, accepted) in &distinct {
        let Some(stored) = events.get(&event) else {
            breaches.push(Breach::EventLost(event));
            continue;
        };
        if stored.body != accepted.body {
            breaches.push(Breach::BodyChanged(event));
        }
        let promised_count = accepted.deliveries;
        if u32::try_from(stored.deliveries) != Ok(promised_count) {
            breaches.push(Breach::DeliveryCount {
                event,
                promised: promised_count,
                stored: stored.deliveries,
            });
        }
        let lost = promised(event, promised_count).filter(|delivery| !known.contains(delivery));
        breaches.extend(lost.map(Breach::DeliveryLost));
    }
    let refused = ledger.refused.iter().copied().filter(|event| events.contains_key(event));
    breaches.extend(refused.map(Breach::RefusedButStored));
}

fn keys(ledger: &Ledger, evidence: &Evidence, breaches: &mut Vec<Breach>) {
    let stored: HashMap<(&str, &str), EventId> = evidence
        .keys
        .iter()
        .map(|key| ((key.application.as_str(), key.key.as_str()), key.event_id))
        .collect();
    let mut answered: BTreeMap<(&str, &str), EventId> = BTreeMap::new();
    for accepted in &ledger.accepted {
        let Some((application, key)) = &accepted.key else { continue };
        let place = (application.as_str(), key.as_str());
        let (application, key) = (application.clone(), key.to_string());
        match answered.insert(place, accepted.event_id) {
            None => {
                let stored = stored.get(&place).copied();
                if stored != Some(accepted.event_id) {
                    let answered = accepted.event_id;
                    breaches.push(Breach::KeyStoredOtherwise { application, key, answered, stored });
                }
            }
            Some(first) if first != accepted.event_id => {
                breaches.push(Breach::KeyAnsweredTwice {
                    application,
                    key,
                    first,
                    second: accepted.event_id,
                });
            }
            Some(_) => {}
        }
    }
}

fn places(evidence: &Evidence, breaches: &mut Vec<Breach>) {
    let mut seen = BTreeSet::new();
    let mut reached = BTreeSet::new();
    for (delivery, endpoint) in deliveries(evidence) {
        let event = delivery.event();
        if !seen.insert(delivery) {
            breaches.push(Breach::DeliveryTwice(delivery));
        } else if !reached.insert((event, endpoint)) {
            breaches.push(Breach::EndpointTwice { event, endpoint });
        }
    }
}

fn requests(ledger: &Ledger, evidence: &Evidence, breaches: &mut Vec<Breach>) {
    let bodies: HashMap<EventId, &[u8]> =
        evidence.events.iter().map(|event| (event.id, event.body.as_slice())).collect();
    let known: BTreeSet<DeliveryId> = deliveries(evidence).map(|(delivery, _)| delivery).collect();
    let mut got = BTreeSet::new();
    for received in &ledger.received {
        match received.webhook_id.parse::<DeliveryId>() {
            Ok(delivery) if known.contains(&delivery) => {
                got.insert(delivery);
                if bodies.get(&delivery.event()).is_none_or(|body| *body != received.body) {
                    breaches.push(Breach::RequestBody(delivery));
                }
            }
            Ok(_) | Err(_) => breaches.push(Breach::UnknownRequest(received.webhook_id.clone())),
        }
    }
    let delivered = evidence.ended.iter().filter(|ended| ended.is_delivered).map(|ended| ended.delivery_id);
    breaches.extend(delivered.filter(|delivery| !got.contains(delivery)).map(Breach::NeverReceived));
}

fn stuck(evidence: &Evidence, expectation: Expectation, breaches: &mut Vec<Breach>) {
    let is_late = |at: Option<time::OffsetDateTime>| at.is_none_or(|at| at + expectation.poll < evidence.now);
    for open in &evidence.open {
        let delivery = open.delivery_id;
        match open.state.as_str() {
            "in_flight" if is_late(open.lease_until) => breaches.push(Breach::StuckInFlight(delivery)),
            "scheduled" if is_late(open.due_at) => breaches.push(Breach::StuckScheduled(delivery)),
            state if expectation.everything_ended => {
                breaches.push(Breach::StillOpen { delivery, state: state.to_owned() });
            }
            _ => {}
        }
    }
}

fn attempts(evidence: &Evidence, breaches: &mut Vec<Breach>) {
    let mut by_delivery: BTreeMap<DeliveryId, Vec<&Attempt>> = BTreeMap::new();
    for attempt in &evidence.attempts {
        by_delivery.entry(attempt.delivery_id).or_default().push(attempt);
    }
    for attempts in by_delivery.values_mut() {
        attempts.sort_by_key(|attempt| attempt.number);
    }
    let ended =
        evidence.ended.iter().map(|ended| (ended.delivery_id, ended.attempt_number, ended.is_delivered));
    let open = evidence.open.iter().map(|open| (open.delivery_id, settled_attempts(open), false));
    for (delivery, expected, is_delivered) in ended.chain(open) {
        let found = by_delivery.remove(&delivery).unwrap_or_default();
        let numbers: Vec<i32> = found.iter().map(|attempt| attempt.number).collect();
        if !numbers.iter().copied().eq(1..=expected) {
            breaches.push(Breach::AttemptNumbers { delivery, expected, found: numbers });
        }
        let is_last_only = |attempts: &[&Attempt]| match attempts.split_last() {
            Some((last, before)) => {
                last.outcome == "delivered" && before.iter().all(|attempt| attempt.outcome != "delivered")
            }
            None => false,
        };
        if is_delivered && !is_last_only(&found) {
            let found = found.iter().map(|attempt| attempt.outcome.clone()).collect();
            breaches.push(Breach::AttemptOutcomes { delivery, found });
        }
    }
    breaches.extend(by_delivery.into_keys().map(Breach::OrphanedAttempts));
}

/// Attempts that have a row: the one in flight is the lease itself until it is settled or taken over.
fn settled_attempts(open: &Open) -> i32 {
    if open.state == "in_flight" { open.attempt_number - 1 } else { open.attempt_number }
}

fn deliveries(evidence: &Evidence) -> impl Iterator<Item = (DeliveryId, EndpointId)> {
    let open = evidence.open.iter().map(|open| (open.delivery_id, open.endpoint_id));
    open.chain(evidence.ended.iter().map(|ended| (ended.delivery_id, ended.endpoint_id)))
}
