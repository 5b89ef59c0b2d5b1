//! Deleted endpoints: nothing is sent to them but what was claimed before, nothing is opened for them, and what waited
//! for them ends as dead letters.

use std::collections::{BTreeMap, BTreeSet};

use postrider_core::{
    id::{DeliveryId, EndpointId},
    retry::DeadReason,
};

use super::{AttemptId, Ended, Open};

#[derive(Debug, Default)]
pub struct Deletions(BTreeMap<EndpointId, Deleted>);

/// What was open when an endpoint was deleted.
#[derive(Debug)]
struct Deleted {
    claimed: BTreeSet<AttemptId>,
    waiting: BTreeSet<DeliveryId>,
}

impl Deletions {
    pub fn contains(&self, endpoint: EndpointId) -> bool {
        self.0.contains_key(&endpoint)
    }

    /// An endpoint was deleted just now, while these were open.
    pub fn note(&mut self, endpoint: EndpointId, open: &BTreeMap<DeliveryId, Open>) {
        let of_endpoint = || open.iter().filter(|(_, open)| open.endpoint == endpoint);
        let claimed = of_endpoint().filter(|(_, open)| open.is_claimed());
        let waiting = of_endpoint().filter(|(_, open)| !open.is_claimed());
        self.0.insert(
            endpoint,
            Deleted {
                claimed: claimed.map(|(delivery, open)| (*delivery, open.number)).collect(),
                waiting: waiting.map(|(delivery, _)| *delivery).collect(),
            },
        );
    }

    /// Whether this attempt may still be made: it was claimed before its endpoint was deleted.
    pub fn permits(&self, endpoint: EndpointId, attempt: AttemptId) -> bool {
        self.0.get(&endpoint).is_none_or(|deleted| deleted.claimed.contains(&attempt))
    }

    /// Whether this attempt was claimed before its endpoint was deleted, and is said to have ended for that.
    pub fn explains(&self, attempt: AttemptId, ended: &Ended) -> bool {
        let deleted = self.0.get(&ended.endpoint);
        ended.reason == DeadReason::EndpointDeleted.as_str()
            && deleted.is_some_and(|deleted| deleted.claimed.contains(&attempt))
    }

    /// What may not be open any more.
    pub fn find_opened(&self, open: &BTreeMap<DeliveryId, Open>) -> Option<(DeliveryId, &'static str)> {
        open.iter().find_map(|(delivery, open)| {
            let deleted = self.0.get(&open.endpoint)?;
            let was_claimed = deleted.claimed.iter().any(|(claimed, _)| claimed == delivery);
            if !was_claimed && !deleted.waiting.contains(delivery) {
                return Some((*delivery, "was opened for an endpoint that was deleted before"));
            }
            let is_claimed_anew = open.is_claimed() && !deleted.claimed.contains(&(*delivery, open.number));
            is_claimed_anew.then_some((*delivery, "was claimed although its endpoint was deleted before"))
        })
    }

    /// What waited for a deleted endpoint and has not ended as it must, now that everything has.
    pub fn find_unended(&self, ended: &BTreeMap<DeliveryId, Ended>) -> Option<(DeliveryId, String)> {
        let rightly = [DeadReason::EndpointDeleted, DeadReason::DeadlinePassed].map(DeadReason::as_str);
        let waiting = self.0.values().flat_map(|deleted| &deleted.waiting);
        waiting
            .map(|delivery| (*delivery, ended.get(delivery)))
            .find(|(_, ended)| !ended.is_some_and(|ended| rightly.contains(&ended.reason.as_str())))
            .map(|(delivery, ended)| {
                (delivery, format!("waited for an endpoint that was deleted: {ended:?}"))
            })
    }

    /// How many deliveries waited for deleted endpoints, or were under way to them.
    pub fn counts(&self) -> [(&'static str, usize); 2] {
        let waiting = self.0.values().map(|deleted| deleted.waiting.len()).sum();
        let claimed = self.0.values().map(|deleted| deleted.claimed.len()).sum();
        [("waited for a deleted endpoint", waiting), ("under way to a deleted endpoint", claimed)]
    }
}
