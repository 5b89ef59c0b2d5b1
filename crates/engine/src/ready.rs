//! The endpoints known to have pending work, in the order in which they are served: round-robin over tenants, and over
//! each tenant's endpoints. So one endpoint with a million waiting deliveries costs its neighbours nothing.
//!
//! An entry is only a hint. An endpoint is taken off *before* its rows are asked for and put back if there may be more;
//! the other way round a wake-up between the two would be lost.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use postrider_core::id::{EndpointId, TenantId};
use time::OffsetDateTime;
use tokio::sync::Notify;

/// Endpoints listed at once; what does not fit is found by a later scan. A full list makes room for a tenant with few
/// endpoints at the cost of the one with most.
pub const MAX_READY_ENDPOINTS: usize = 100_000;

/// An endpoint whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub tenant_id: TenantId,
    pub endpoint_id: EndpointId,
    /// No live row is older, as far as is known.
    pub low_water: Option<OffsetDateTime>,
    /// Its last claim gave all that was asked for: there is likely much more.
    pub is_backlogged: bool,
}

/// The list.
#[derive(Debug, Default)]
pub struct Ready {
    list: Mutex<List>,
    added: Notify,
}

#[derive(Debug, Default)]
struct List {
    /// Tenants with listed endpoints; the front one is next.
    tenants: VecDeque<TenantId>,
    endpoints: HashMap<TenantId, VecDeque<EndpointId>>,
    entries: HashMap<EndpointId, Entry>,
    /// Endpoints whose own concurrency is used up: the end of one of their requests lists them again.
    parked: HashMap<EndpointId, Turn>,
}

#[derive(Debug)]
struct Entry {
    low_water: Option<OffsetDateTime>,
    is_backlogged: bool,
    /// Monotonic time before which asking is pointless: the endpoint's rate is used up.
    not_before: Duration,
}

impl Ready {
    /// Lists an endpoint where something waits, since then at the earliest if that is known.
    pub fn add_pending(&self, tenant_id: TenantId, endpoint_id: EndpointId, since: Option<OffsetDateTime>) {
        self.add(Turn { tenant_id, endpoint_id, low_water: since, is_backlogged: false }, Duration::ZERO);
    }

    /// Lists an endpoint. A listed one keeps its place; of two low-water marks the lower one counts, and none at all is
    /// lower than any.
    pub fn add(&self, turn: Turn, not_before: Duration) {
        self.lock().add(turn, not_before);
        self.added.notify_one();
    }

    /// Lists an endpoint again whose turn has just been; wakes nobody, since the caller is the one who would be woken.
    pub fn put_back(&self, turn: Turn, not_before: Duration) {
        self.lock().add(turn, not_before);
    }

    /// Completes after something was added; remembers an addition from before.
    pub async fn added(&self) {
        self.added.notified().await;
    }

    /// Parks an endpoint that can have nothing before one of its own requests ends. The caller looks again after
    /// this whether one has just ended.
    pub fn park(&self, turn: Turn) {
        self.lock().parked.insert(turn.endpoint_id, turn);
    }

    /// Lists an endpoint that was parked.
    pub fn unpark(&self, endpoint_id: EndpointId) {
        let mut list = self.lock();
        let Some(turn) = list.parked.get(&endpoint_id).copied() else { return };
        list.add(turn, Duration::ZERO);
        drop(list);
        self.added.notify_one();
    }

    /// Whether pending work of this endpoint is known: what comes now has to queue behind it.
    pub fn contains(&self, endpoint_id: EndpointId) -> bool {
        let list = self.lock();
        list.entries.contains_key(&endpoint_id) || list.parked.contains_key(&endpoint_id)
    }

    /// How many endpoints are listed, those parked not counted.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The turns of one round, each taken off the list: `count` at most, tenant by tenant.
    pub fn next_round(&self, count: usize, now: Duration) -> Vec<Turn> {
        let mut list = self.lock();
        let mut turns = Vec::new();
        let mut early = Vec::new();
        while turns.len() < count {
            let Some((turn, not_before)) = list.pop() else { break };
            if not_before > now {
                early.push((turn, not_before));
            } else {
                turns.push(turn);
            }
        }
        for (turn, not_before) in early {
            list.add(turn, not_before);
        }
        turns
    }

    /// How long until the first listed endpoint may be asked; `None` when none is listed.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        self.lock().entries.values().map(|entry| entry.not_before.saturating_sub(now)).min()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    fn add(&mut self, mut turn: Turn, not_before: Duration) {
        if let Some(parked) = self.parked.remove(&turn.endpoint_id) {
            turn.low_water = turn.low_water.min(parked.low_water);
            turn.is_backlogged |= parked.is_backlogged;
        }
        if let Some(entry) = self.entries.get_mut(&turn.endpoint_id) {
            entry.low_water = entry.low_water.min(turn.low_water);
            entry.is_backlogged |= turn.is_backlogged;
            entry.not_before = entry.not_before.min(not_before);
            return;
        }
        if self.entries.len() >= MAX_READY_ENDPOINTS && !self.make_room_for(turn.tenant_id) {
            return;
        }
        let Turn { low_water, is_backlogged, .. } = turn;
        self.entries.insert(turn.endpoint_id, Entry { low_water, is_backlogged, not_before });
        let endpoints = self.endpoints.entry(turn.tenant_id).or_default();
        if endpoints.is_empty() {
            self.tenants.push_back(turn.tenant_id);
        }
        endpoints.push_back(turn.endpoint_id);
    }

    /// Takes the last endpoint off whose tenant has most, unless that is the tenant that asks.
    fn make_room_for(&mut self, tenant_id: TenantId) -> bool {
        let own = self.endpoints.get(&tenant_id).map_or(0, VecDeque::len);
        let Some((largest, endpoints)) =
            self.endpoints.iter_mut().max_by_key(|(_, endpoints)| endpoints.len())
        else {
            return false;
        };
        if *largest == tenant_id || endpoints.len() <= own + 1 {
            return false;
        }
        endpoints.pop_back().is_some_and(|evicted| self.entries.remove(&evicted).is_some())
    }

    /// Takes the next endpoint off; its tenant goes to the back.
    fn pop(&mut self) -> Option<(Turn, Duration)> {
        let tenant_id = self.tenants.pop_front()?;
        let endpoints = self.endpoints.get_mut(&tenant_id)?;
        let endpoint_id = endpoints.pop_front()?;
        if endpoints.is_empty() {
            self.endpoints.remove(&tenant_id);
        } else {
            self.tenants.push_back(tenant_id);
        }
        let Entry { low_water, is_backlogged, not_before } = self.entries.remove(&endpoint_id)?;
        Some((Turn { tenant_id, endpoint_id, low_water, is_backlogged }, not_before))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const NOW: Duration = Duration::from_secs(10);

    fn turn(tenant: u128, endpoint: u128) -> Turn {
        Turn {
            tenant_id: TenantId::from_uuid(Uuid::from_u128(tenant)),
            endpoint_id: EndpointId::from_uuid(Uuid::from_u128(endpoint)),
            low_water: Some(OffsetDateTime::UNIX_EPOCH),
            is_backlogged: false,
        }
    }

    #[test]
    fn tenants_take_turns_however_many_endpoints_each_has() {
        let ready = Ready::default();
        for endpoint in 1..=4 {
            ready.add(turn(1, endpoint), Duration::ZERO);
        }
        ready.add(turn(2, 5), Duration::ZERO);
        ready.add(turn(1, 1), Duration::ZERO);
        assert_eq!(ready.next_round(3, NOW), [turn(1, 1), turn(2, 5), turn(1, 2)]);
        assert!(!ready.contains(turn(1, 1).endpoint_id));
        ready.add(turn(2, 5), Duration::ZERO);
        assert_eq!(ready.next_round(9, NOW), [turn(1, 3), turn(2, 5), turn(1, 4)]);
        assert!(ready.is_empty());
    }

    #[test]
    fn an_endpoint_out_of_tokens_waits_and_keeps_the_lower_mark() {
        let ready = Ready::default();
        let later = NOW + Duration::from_secs(3);
        ready.add(turn(1, 1), later);
        assert_eq!(ready.next_round(9, NOW), []);
        assert_eq!(ready.wait(NOW), Some(Duration::from_secs(3)));
        ready.add(Turn { low_water: None, ..turn(1, 1) }, later);
        assert_eq!(ready.next_round(9, later), [Turn { low_water: None, ..turn(1, 1) }]);
        assert_eq!(ready.wait(NOW), None);
    }

    #[test]
    fn a_parked_endpoint_is_known_but_not_visited_until_it_is_listed_again() {
        let ready = Ready::default();
        ready.park(turn(1, 1));
        assert!(ready.contains(turn(1, 1).endpoint_id) && ready.is_empty());
        ready.unpark(turn(1, 1).endpoint_id);
        assert_eq!(ready.next_round(9, NOW), [turn(1, 1)]);
        ready.unpark(turn(1, 1).endpoint_id);
        assert!(ready.is_empty(), "it was no longer parked");
    }

    #[test]
    fn a_full_list_makes_room_for_the_tenant_with_few() {
        let ready = Ready::default();
        for endpoint in 0..MAX_READY_ENDPOINTS {
            ready.add(turn(1, endpoint as u128), Duration::ZERO);
        }
        ready.add(turn(1, u128::MAX), Duration::ZERO);
        assert!(!ready.contains(turn(1, u128::MAX).endpoint_id), "a tenant does not push out itself");
        ready.add(turn(2, u128::MAX), Duration::ZERO);
        assert_eq!(ready.len(), MAX_READY_ENDPOINTS);
        assert_eq!(ready.next_round(2, NOW)[1], turn(2, u128::MAX));
    }
}
