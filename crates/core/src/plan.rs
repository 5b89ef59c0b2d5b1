//! The fan-out plan: which endpoints get an event. Rules come from enabled subscriptions of the publishing
//! application; an endpoint named by several of them still gets the event once.

use crate::{
    id::{EndpointId, MAX_DELIVERIES_PER_EVENT},
    name::{EventType, EventTypePattern},
};

/// Most subscriptions one application may have; keeps a plan, and so what one event can set off, within bounds.
pub const MAX_SUBSCRIPTIONS_PER_APPLICATION: u32 = 5_000;

const _: () = assert!(
    MAX_SUBSCRIPTIONS_PER_APPLICATION <= MAX_DELIVERIES_PER_EVENT as u32,
    "an event that every subscription matches has a number for each delivery"
);

/// One enabled subscription to an enabled endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub patterns: Vec<EventTypePattern>,
    pub endpoint: EndpointId,
}

/// The endpoints that get an event of this type, each once, in the order of the rules.
pub fn fan_out(rules: &[Rule], event_type: &EventType) -> Vec<EndpointId> {
    let mut endpoints: Vec<EndpointId> = matching(rules, event_type).collect();
    let mut seen = std::collections::HashSet::with_capacity(endpoints.len());
    endpoints.retain(|endpoint| seen.insert(*endpoint));
    endpoints
}

/// The same, but an endpoint stands once for each rule that names it: enough to estimate what an event costs.
pub fn matching(rules: &[Rule], event_type: &EventType) -> impl Iterator<Item = EndpointId> {
    let matches = move |rule: &&Rule| rule.patterns.iter().any(|pattern| pattern.matches(event_type));
    rules.iter().filter(matches).map(|rule| rule.endpoint)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn endpoint(number: u128) -> EndpointId {
        EndpointId::from_uuid(Uuid::from_u128(number))
    }

    fn rule(patterns: &[&str], number: u128) -> Rule {
        let patterns = patterns.iter().map(|pattern| pattern.parse().expect("pattern")).collect();
        Rule { patterns, endpoint: endpoint(number) }
    }

    #[test]
    fn each_matching_endpoint_is_planned_once() {
        let rules = [
            rule(&["order.*"], 1),
            rule(&["order.created", "*"], 2),
            rule(&["*"], 1),
            rule(&["invoice.paid"], 3),
        ];
        let check = |event_type: &str, expected: &[u128]| {
            let planned = fan_out(&rules, &event_type.parse().expect("event type"));
            assert_eq!(planned, expected.iter().copied().map(endpoint).collect::<Vec<_>>(), "{event_type}");
        };
        check("order.created", &[1, 2]);
        check("invoice.paid", &[2, 1, 3]);
        check("other", &[2, 1]);
        assert!(fan_out(&[], &"order.created".parse().expect("event type")).is_empty());
    }
}
