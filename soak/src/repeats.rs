//! Why receivers got some deliveries more than once. Pure: it compares what was received with what was recorded.
//!
//! Every request belongs to an attempt, which it names. Beyond the first of a delivery there may be
//!
//! | request | because |
//! |---|---|
//! | the first of a later attempt | the attempt before failed, by its record: the receiver asked for it |
//! | the first of a later attempt | the attempt before was interrupted, by its record |
//! | a second one of the same attempt | the receiver closed a kept connection instead of answering, by its own books |
//!
//! and nothing else.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use postrider_core::id::DeliveryId;
use postrider_testkit::ledger::Evidence;

use crate::verdict::{Arrival, Bar};

/// One attempt of one delivery.
pub(crate) type AttemptKey = (DeliveryId, i32);

/// Requests beyond the first of a delivery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repeats {
    /// The receiver had answered otherwise than it should, or not in time.
    pub after_failure: usize,
    /// A fault had cut off the attempt before, whose request may or may not have been answered.
    pub after_interruption: usize,
    /// The receiver had closed a connection that was kept.
    pub reconnected: usize,
}

/// How often a receiver closed the connection instead of answering a request of an attempt.
pub(crate) type Unanswered = HashMap<AttemptKey, usize>;

/// Counts, and holds the repeats against what the faults had in flight.
pub(crate) fn explain(
    arrivals: &[Arrival],
    unanswered: &Unanswered,
    evidence: &Evidence,
    hit: &BTreeSet<AttemptKey>,
) -> (Vec<Bar>, Repeats) {
    let outcomes: HashMap<AttemptKey, &str> = evidence
        .attempts
        .iter()
        .map(|attempt| ((attempt.delivery_id, attempt.number), attempt.outcome.as_str()))
        .collect();
    let mut requests: BTreeMap<DeliveryId, BTreeMap<i32, usize>> = BTreeMap::new();
    let mut unexplained = Vec::new();
    for Arrival { received, attempt, .. } in arrivals {
        // Ids of no delivery are a matter of the ledgers.
        let Ok(delivery) = received.webhook_id.parse() else { continue };
        match attempt {
            Some(attempt) => *requests.entry(delivery).or_default().entry(*attempt).or_default() += 1,
            None => unexplained.push(format!("{delivery}: a request that names no attempt")),
        }
    }
    let mut repeats = Repeats::default();
    for (delivery, attempts) in requests {
        let mut before: Option<(i32, Option<&str>)> = None;
        for (attempt, count) in attempts {
            let outcome = outcomes.get(&(delivery, attempt)).copied();
            if outcome.is_none() {
                unexplained
                    .push(format!("{delivery}: a request of attempt {attempt}, which is not recorded"));
            }
            let again = count - 1;
            let closed = unanswered.get(&(delivery, attempt)).copied().unwrap_or_default();
            repeats.reconnected += again.min(closed);
            if again > closed {
                unexplained.push(format!(
                    "{delivery}: {count} requests of attempt {attempt}, {closed} of them closed"
                ));
            }
            match before {
                None => {}
                Some((_, Some("scheduled"))) => repeats.after_failure += 1,
                Some((_, Some("interrupted"))) => repeats.after_interruption += 1,
                Some((number, other)) => {
                    unexplained
                        .push(format!("{delivery}: attempt {attempt} follows {number}, which is {other:?}"));
                }
            }
            before = Some((attempt, outcome));
        }
    }
    let strays = outcomes.iter().filter(|(key, outcome)| **outcome == "interrupted" && !hit.contains(key));
    let strays = strays.map(|((delivery, attempt), _)| format!("{delivery}, attempt {attempt}")).collect();
    let bars = vec![
        Bar::none("repeated requests that nothing explains", unexplained),
        Bar::none("interrupted attempts that no fault had in flight", strays),
        Bar::at_most(
            "requests repeated for a fault, of what was in flight",
            repeats.after_interruption,
            hit.len(),
        ),
    ];
    (bars, repeats)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use postrider_core::id::EventId;
    use postrider_testkit::ledger::{Attempt, Received};
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    const UNEXPLAINED: &str = "repeated requests that nothing explains";
    const STRAY: &str = "interrupted attempts that no fault had in flight";
    const TOO_MANY: &str = "requests repeated for a fault, of what was in flight";

    fn delivery() -> DeliveryId {
        EventId::from_uuid(Uuid::from_u128(1 << 16)).delivery(std::num::NonZeroU16::MIN)
    }

    fn evidence(outcomes: &[&str]) -> Evidence {
        let attempts = (1..).zip(outcomes).map(|(number, outcome)| Attempt {
            delivery_id: delivery(),
            number,
            outcome: (*outcome).to_owned(),
        });
        Evidence {
            now: OffsetDateTime::UNIX_EPOCH,
            events: Vec::new(),
            keys: Vec::new(),
            open: Vec::new(),
            ended: Vec::new(),
            attempts: attempts.collect(),
        }
    }

    struct Case {
        /// By attempt.
        requests: &'static [i32],
        outcomes: &'static [&'static str],
        /// Attempts whose first request the receiver closed.
        closed: &'static [i32],
        /// Attempts that a fault had in flight.
        hit: &'static [i32],
    }

    #[track_caller]
    fn check(case: &Case, expected: Repeats, unmet: &[&str]) {
        let arrival = |attempt: &i32| Arrival {
            path: "/".to_owned(),
            attempt: Some(*attempt),
            received: Received { webhook_id: delivery().to_string(), body: Bytes::new() },
        };
        let arrivals: Vec<Arrival> = case.requests.iter().map(arrival).collect();
        let unanswered = case.closed.iter().map(|attempt| ((delivery(), *attempt), 1)).collect();
        let hit = case.hit.iter().map(|attempt| (delivery(), *attempt)).collect();
        let (bars, repeats) = explain(&arrivals, &unanswered, &evidence(case.outcomes), &hit);
        assert_eq!(repeats, expected);
        let found: Vec<&str> = bars.iter().filter(|bar| !bar.is_met()).map(|bar| bar.demand).collect();
        assert_eq!(found, unmet);
    }

    #[test]
    fn repeats_are_explained_by_failures_interruptions_and_closed_connections() {
        let none = Repeats::default();
        let case = |requests, outcomes| Case { requests, outcomes, closed: &[], hit: &[] };
        check(&case(&[1], &["delivered"]), none, &[]);
        check(&case(&[1, 2], &["scheduled", "delivered"]), Repeats { after_failure: 1, ..none }, &[]);
        let cut = Case { hit: &[1], ..case(&[1, 2], &["interrupted", "delivered"]) };
        check(&cut, Repeats { after_interruption: 1, ..none }, &[]);
        // The attempt was cut off before its request: nothing was repeated.
        let unsent = Case { hit: &[1], ..case(&[2], &["interrupted", "delivered"]) };
        check(&unsent, none, &[]);
        let closed = Case { closed: &[1], ..case(&[1, 1], &["delivered"]) };
        check(&closed, Repeats { reconnected: 1, ..none }, &[]);
    }

    #[test]
    fn what_nothing_explains_breaks_its_demand() {
        let none = Repeats::default();
        let case = |requests, outcomes| Case { requests, outcomes, closed: &[], hit: &[] };
        check(&case(&[1, 1], &["delivered"]), none, &[UNEXPLAINED]);
        check(&case(&[1, 2], &["delivered"]), none, &[UNEXPLAINED]);
        check(&case(&[1, 2], &["delivered", "delivered"]), none, &[UNEXPLAINED]);
        check(&case(&[1], &[]), none, &[UNEXPLAINED]);
        check(&case(&[2], &["interrupted", "delivered"]), none, &[STRAY]);
        let repeats = Repeats { after_interruption: 1, ..none };
        check(&case(&[1, 2], &["interrupted", "delivered"]), repeats, &[STRAY, TOO_MANY]);
    }
}
