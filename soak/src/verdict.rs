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

use crate::publish::number_in;

/// One demand: what was found, and what had to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bar {
    pub demand: &'static str,
    pub found: usize,
    pub demanded: usize,
    /// What broke it, for a person who looks into it.
    pub evidence: Vec<String>,
}

impl Bar {
    pub const fn is_met(&self) -> bool {
        self.found == self.demanded
    }

    /// Nothing of this kind may be found.
    pub(crate) const fn none(demand: &'static str, evidence: Vec<String>) -> Self {
        Self { demand, found: evidence.len(), demanded: 0, evidence }
    }

    pub(crate) const fn all(demand: &'static str, found: usize, demanded: usize) -> Self {
        Self { demand, found, demanded, evidence: Vec::new() }
    }
}

/// What receivers got, with who got it.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) path: String,
    pub(crate) received: Received,
}

impl Arrival {
    pub(crate) fn of(request: &Request) -> Self {
        let webhook_id = request.header("webhook-id").unwrap_or_default().to_owned();
        let received = Received { webhook_id, body: request.body.clone() };
        Self { path: request.target().to_owned(), received }
    }
}

/// Everything is left to end before this is asked for, so no poll is waited for any more.
const ENDED: Expectation = Expectation { poll: Duration::ZERO, everything_ended: true };

/// Compares the ledgers with the database.
pub(crate) fn of_ledgers(ledger: &Ledger, arrivals: &[Arrival], evidence: &Evidence) -> (Vec<Bar>, Report) {
    let breaches = ledger.breaches(evidence, ENDED);
    let text = |breaches: Vec<&Breach>| breaches.iter().map(ToString::to_string).collect();
    let (lost, others) = breaches.iter().partition(|breach| is_loss(breach));
    let dead: Vec<String> = evidence
        .ended
        .iter()
        .filter(|ended| !ended.is_delivered)
        .map(|ended| ended.delivery_id.to_string())
        .collect();
    let bars = vec![
        Bar::none("lost", text(lost)),
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
            | Breach::StillOpen { .. }
            | Breach::DeliveryCount { .. }
    )
}

/// Every event went to each receiver under one id, told by the event's number in the body: the database has no say.
fn under_another_id(arrivals: &[Arrival]) -> Vec<String> {
    let mut ids: HashMap<(&str, Option<u64>), BTreeSet<&str>> = HashMap::new();
    for Arrival { path, received } in arrivals {
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
