//! What the books and the database say in the end, held against what was demanded. Pure: it judges what was read.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use postrider_core::id::DeliveryId;
use postrider_testkit::{
    ledger::{Breach, Evidence, Expectation, Ledger, Received, Report},
    receiver::Request,
};

use crate::{dependencies::Unrest, publish::number_in, receive::attempt_number_of};

/// One demand: what was found, and what had to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bar {
    pub demand: &'static str,
    pub found: usize,
    pub demanded: usize,
    /// Whether less would do.
    pub is_bound: bool,
    /// What broke it, for a person who looks into it.
    pub evidence: Vec<String>,
}

impl Bar {
    pub const fn is_met(&self) -> bool {
        self.found == self.demanded || (self.is_bound && self.found < self.demanded)
    }

    /// Nothing of this kind may be found.
    pub(crate) const fn none(demand: &'static str, evidence: Vec<String>) -> Self {
        Self { demand, found: evidence.len(), demanded: 0, is_bound: false, evidence }
    }

    pub(crate) const fn all(demand: &'static str, found: usize, demanded: usize) -> Self {
        Self { demand, found, demanded, is_bound: false, evidence: Vec::new() }
    }

    pub(crate) const fn at_most(demand: &'static str, found: usize, bound: usize) -> Self {
        Self { demand, found, demanded: bound, is_bound: true, evidence: Vec::new() }
    }
}

/// What receivers got, with who got it.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) path: String,
    pub(crate) attempt: Option<i32>,
    pub(crate) received: Received,
}

impl Arrival {
    pub(crate) fn of(request: &Request) -> Self {
        let webhook_id = request.header("webhook-id").unwrap_or_default().to_owned();
        let received = Received { webhook_id, body: request.body.clone() };
        Self { path: request.target().to_owned(), attempt: attempt_number_of(request), received }
    }
}

/// Everything is left to end before this is asked for, so no poll is waited for any more.
const ENDED: Expectation = Expectation { poll: Duration::ZERO, everything_ended: true };

/// Compares the ledgers with the database.
pub(crate) fn of_ledgers(ledger: &Ledger, arrivals: &[Arrival], evidence: &Evidence) -> (Vec<Bar>, Report) {
    let breaches = ledger.breaches(evidence, ENDED);
    let text = |breaches: Vec<&Breach>| breaches.iter().map(ToString::to_string).collect();
    let (lost, others): (Vec<_>, Vec<_>) = breaches.iter().partition(|breach| is_loss(breach));
    let (open, others) = others.into_iter().partition(|breach| matches!(breach, Breach::StillOpen { .. }));
    let dead: Vec<String> = evidence
        .ended
        .iter()
        .filter(|ended| !ended.is_delivered)
        .map(|ended| ended.delivery_id.to_string())
        .collect();
    let bars = vec![
        Bar::none("lost", text(lost)),
        Bar::none("open", text(open)),
        Bar::none("requests under another id than the first", under_another_id(arrivals)),
        Bar::none("dead letters", dead),
        Bar::none("other disagreements of the ledgers", text(others)),
    ];
    (bars, ledger.report(evidence))
}

fn is_loss(breach: &Breach) -> bool {
    matches!(
        breach,
        Breach::EventLost(_)
            | Breach::DeliveryLost(_)
            | Breach::NeverReceived(_)
            | Breach::DeliveryCount { .. }
    )
}

/// Every event went to each receiver under one id, told by the event's number in the body: the database has no say.
fn under_another_id(arrivals: &[Arrival]) -> Vec<String> {
    let mut ids: HashMap<(&str, Option<u64>), BTreeSet<&str>> = HashMap::new();
    for Arrival { path, received, .. } in arrivals {
        let number = number_in(&received.body);
        ids.entry((path.as_str(), number)).or_default().insert(&received.webhook_id);
    }
    let several = ids.into_iter().filter(|(_, ids)| ids.len() > 1);
    several.map(|((path, number), ids)| format!("{path} got event {number:?} as {ids:?}")).collect()
}

/// Rows that nobody worked on though their time had come.
pub(crate) fn of_stuck(rows: &[(DeliveryId, String)]) -> Bar {
    Bar::none("stuck past lease and poll", rows.iter().map(|(_, row)| row.clone()).collect())
}

/// What a fleet's broker and Redis have to show in the end.
pub(crate) fn of_dependencies(unrest: Unrest, silences: Vec<String>) -> Vec<Bar> {
    vec![
        Bar::none("absences of the broker without a request", silences),
        Bar::all("messages that the broker has not confirmed", unrest.unpublished, 0),
        Bar::all("messages that no worker has acknowledged", unrest.unacknowledged, 0),
        Bar::all("processes without a connection to Redis", unrest.apart, 0),
    ]
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use postrider_core::id::{EndpointId, EventId};
    use postrider_testkit::ledger::{Accepted, Attempt, Ended, Event, Open};
    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    struct Books {
        ledger: Ledger,
        arrivals: Vec<Arrival>,
        evidence: Evidence,
    }

    fn delivery() -> DeliveryId {
        EventId::from_uuid(Uuid::from_u128(1 << 16)).delivery(std::num::NonZeroU16::MIN)
    }

    fn arrival(id: &str, body: &Bytes) -> Arrival {
        let received = Received { webhook_id: id.to_owned(), body: body.clone() };
        Arrival { path: "/acme/steady".to_owned(), attempt: None, received }
    }

    /// One event whose delivery arrived twice.
    fn books() -> Books {
        let body = Bytes::from_static(b"{\"number\":7,");
        let event_id = delivery().event();
        let arrivals = vec![arrival(&delivery().to_string(), &body), arrival(&delivery().to_string(), &body)];
        let attempt =
            |number, outcome: &str| Attempt { delivery_id: delivery(), number, outcome: outcome.to_owned() };
        Books {
            ledger: Ledger {
                accepted: vec![Accepted { event_id, key: None, deliveries: 1, body: body.clone() }],
                received: arrivals.iter().map(|arrival| arrival.received.clone()).collect(),
                ..Ledger::default()
            },
            arrivals,
            evidence: Evidence {
                now: OffsetDateTime::UNIX_EPOCH,
                events: vec![Event { id: event_id, body: body.to_vec(), deliveries: 1 }],
                keys: Vec::new(),
                open: Vec::new(),
                ended: vec![Ended {
                    delivery_id: delivery(),
                    endpoint_id: EndpointId::from_uuid(Uuid::from_u128(9)),
                    is_delivered: true,
                    attempt_number: 2,
                }],
                attempts: vec![attempt(1, "interrupted"), attempt(2, "delivered")],
            },
        }
    }

    /// Which demands are not met once the books are spoilt.
    #[track_caller]
    fn check(spoil: impl FnOnce(&mut Books), unmet: &[&str]) {
        let mut books = books();
        spoil(&mut books);
        let (bars, _) = of_ledgers(&books.ledger, &books.arrivals, &books.evidence);
        let found: Vec<&str> = bars.iter().filter(|bar| !bar.is_met()).map(|bar| bar.demand).collect();
        assert_eq!(found, unmet);
    }

    #[test]
    fn each_fault_breaks_its_demand() {
        check(|_| {}, &[]);
        check(
            |books| {
                books.evidence.ended.clear();
                books.evidence.attempts.clear();
                books.ledger.received.clear();
            },
            &["lost"],
        );
        check(|books| books.ledger.received.clear(), &["lost"]);
        check(
            |books| {
                books.evidence.ended.clear();
                books.evidence.attempts.truncate(1);
                books.evidence.open.push(Open {
                    delivery_id: delivery(),
                    endpoint_id: EndpointId::from_uuid(Uuid::from_u128(9)),
                    state: "pending".to_owned(),
                    attempt_number: 1,
                    due_at: None,
                    lease_until: None,
                });
            },
            &["open"],
        );
        check(
            |books| {
                let body = books.arrivals[0].received.body.clone();
                books.arrivals.push(arrival("dlv_another", &body));
            },
            &["requests under another id than the first"],
        );
        check(
            |books| {
                books.evidence.ended[0].is_delivered = false;
                books.evidence.attempts[1].outcome = "dead_lettered".to_owned();
            },
            &["dead letters"],
        );
        check(|books| drop(books.evidence.attempts.remove(0)), &["other disagreements of the ledgers"]);
    }

    #[test]
    fn a_broker_that_does_not_come_to_rest_breaks_its_demands() {
        let is_met = |unrest, silences| of_dependencies(unrest, silences).iter().all(Bar::is_met);
        let rest = Unrest::default();
        assert!(is_met(rest, Vec::new()));
        assert!(!is_met(rest, vec![String::new()]));
        assert!(!is_met(Unrest { unpublished: 1, ..rest }, Vec::new()));
        assert!(!is_met(Unrest { unacknowledged: 1, ..rest }, Vec::new()));
        assert!(!is_met(Unrest { apart: 1, ..rest }, Vec::new()));
    }

    #[test]
    fn a_bound_is_kept_by_what_is_less() {
        for (found, is_met) in [(0, true), (2, true), (3, false)] {
            assert_eq!(Bar::at_most("", found, 2).is_met(), is_met, "{found}");
        }
        assert!(!Bar::all("", 1, 2).is_met());
    }

    #[test]
    fn a_stuck_row_breaks_its_demand() {
        assert!(of_stuck(&[]).is_met());
        assert!(!of_stuck(&[(delivery(), String::new())]).is_met());
    }
}
