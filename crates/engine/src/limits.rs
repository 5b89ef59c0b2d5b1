//! Permits: who may send how much at once, and how fast. A permit is taken before a row is claimed.
//!
//! Invariants, whatever hangs or fails:
//! - an endpoint never has more requests in flight than it allows, and none is sent without a rate token;
//! - endpoints that answer quickly share all slots among themselves: those that do not have budgets of their own, half
//!   as much for the slow and a quarter for those not known yet, so that neither kind takes from the other or from the
//!   quick ones;
//! - all requests together stay below a ceiling, and deliveries handed over straight from ingest leave a share to those
//!   that wait in the queue.

mod bucket;
mod pace;

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use postrider_core::id::{EndpointId, TenantId};
use postrider_store::{endpoints::Rate, routing::Endpoint};
use tokio::sync::Notify;

use bucket::Bucket;
use pace::{Class, Pace};

/// Requests in flight at an endpoint that has not answered yet: the first answer decides, and a stranger that hangs takes
/// little.
const UNPROVEN_IN_FLIGHT: u16 = 1;
/// All requests in flight, as a multiple of the slots. A hanging request costs a socket and some memory, not work: those
/// of strangers that turned out to be slow may exceed the budget of the slow, and this bounds by how much.
const CEILING: u16 = 4;
/// Between two looks at whether strangers have turned out to be slow.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Endpoints remembered; beyond that idle ones are forgotten.
const MAX_REMEMBERED_ENDPOINTS: usize = 50_000;

/// Who asks for permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Ingest, for a delivery that would be sent straight after its commit.
    HandOff,
    /// The taker, for deliveries that wait in the queue.
    Queue,
}

/// What came of asking.
#[derive(Debug)]
pub struct Grant {
    pub permits: Vec<Permit>,
    /// Where fewer were granted than asked for: what it waits for.
    pub shortage: Option<Shortage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// The endpoint's own concurrency is used up: only the end of one of its requests changes that.
    Endpoint,
    /// The slots are used up, or this kind of endpoint's share of them: the end of any request may change that.
    Slots,
    /// The endpoint's rate allows the next request after this time.
    Rate(Duration),
}

/// All slots of this process.
#[derive(Debug)]
pub struct Limits {
    total: u16,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    in_flight: u16,
    by_class: [u16; 3],
    handed_off: u16,
    /// The taker found no slot: hand-off stands back until one is free.
    queue_waits: bool,
    tenants: HashMap<TenantId, u16>,
    endpoints: HashMap<EndpointId, EndpointState>,
    /// Endpoints whose requests in flight are on the account of those not known yet, and maybe some more.
    strangers: HashSet<EndpointId>,
    looked_at: Duration,
}

#[derive(Debug, Default)]
struct EndpointState {
    in_flight: u16,
    /// Permits given out whose rate token has not been taken yet.
    unpaid: u32,
    pace: Pace,
    bucket: Option<Bucket>,
}

/// The right to have one request in flight. Dropping it gives the slot back.
#[derive(Debug)]
#[must_use]
pub struct Permit {
    limits: Arc<Limits>,
    tenant_id: TenantId,
    endpoint_id: EndpointId,
    source: Source,
    is_paid: bool,
}

impl Limits {
    /// So many requests in flight at endpoints that answer quickly.
    pub fn new(total: u16) -> Arc<Self> {
        Arc::new(Self { total, state: Mutex::default(), freed: Notify::new() })
    }

    /// Completes after a slot was given back; remembers one that was given back before.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u16 {
        self.lock().in_flight
    }

    /// Nothing waits in the queue any more, as far as the taker knows.
    pub fn queue_is_empty(&self) {
        self.lock().queue_waits = false;
    }

    /// Whether an endpoint has a request in flight, whose end will make room.
    pub fn is_in_flight(&self, endpoint_id: EndpointId) -> bool {
        self.lock().endpoints.get(&endpoint_id).is_some_and(|entry| entry.in_flight > 0)
    }

    /// How many slots a tenant uses: who has least goes first.
    pub fn tenant_load(&self, tenant_id: TenantId) -> u16 {
        self.lock().tenants.get(&tenant_id).copied().unwrap_or_default()
    }

    /// Asks for up to `wanted` permits at an endpoint. `now` is monotonic.
    pub fn acquire(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        wanted: u16,
        source: Source,
        now: Duration,
    ) -> Grant {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.forget_idle_endpoints(now);
        let entry = state.endpoints.entry(endpoint.endpoint_id).or_default();
        let old_class = entry.pace.class();
        let class = entry.pace.observe(now);
        let in_flight = entry.in_flight;
        let affordable = entry.affordable(endpoint.rate, now);
        state.reclassify(old_class, class, in_flight);

        if class == Class::Unproven {
            state.look_at_strangers(now);
        }
        let room = state.room(self.total, class, source);
        let own_cap = endpoint.max_in_flight.get().min(match class {
            Class::Quick => u16::MAX,
            Class::Unproven => UNPROVEN_IN_FLIGHT,
            // A slow endpoint may use a good part of what is free for its kind, and leaves some to the next.
            Class::Slow => UNPROVEN_IN_FLIGHT.max(room / 4),
        });
        let own_room = own_cap.saturating_sub(in_flight);
        let free = room.min(own_room);
        let granted = wanted.min(free).min(u16::try_from(affordable).unwrap_or(u16::MAX));
        let shortage = if granted == wanted {
            None
        } else if granted < free {
            let bucket = state.endpoints.get(&endpoint.endpoint_id).and_then(|entry| entry.bucket.as_ref());
            Some(Shortage::Rate(bucket.map_or(Duration::ZERO, |bucket| bucket.wait(now))))
        } else if own_room < room {
            Some(Shortage::Endpoint)
        } else {
            Some(Shortage::Slots)
        };
        if source == Source::Queue && class == Class::Quick {
            // Only a lack of slots counts: an endpoint that is short of its own keeps nobody else from handing over.
            state.queue_waits = room < wanted.min(own_room);
        }
        if granted > 0 {
            state.take(endpoint, class, source, granted);
            if let Some(entry) = state.endpoints.get_mut(&endpoint.endpoint_id) {
                entry.pace.started(now);
            }
        }
        drop(guard);
        let permit = || Permit {
            limits: Arc::clone(self),
            tenant_id: endpoint.tenant_id,
            endpoint_id: endpoint.endpoint_id,
            source,
            is_paid: false,
        };
        Grant { permits: std::iter::repeat_with(permit).take(granted.into()).collect(), shortage }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Slots that a request of this class and source may still use.
    fn room(&self, total: u16, class: Class, source: Source) -> u16 {
        let budget = match class {
            Class::Quick => total,
            Class::Unproven => total.div_ceil(4),
            Class::Slow => total.div_ceil(2),
        };
        let for_class = budget.saturating_sub(self.by_class[class as usize]);
        let for_all = total.saturating_mul(CEILING).saturating_sub(self.in_flight);
        let for_source = match source {
            Source::Queue => u16::MAX,
            Source::HandOff if self.queue_waits => 0,
            Source::HandOff => (total - total / 4).saturating_sub(self.handed_off),
        };
        for_class.min(for_all).min(for_source)
    }

    /// A stranger that is silent for long turns out to be slow, and its requests leave the strangers' budget.
    fn look_at_strangers(&mut self, now: Duration) {
        if now.saturating_sub(self.looked_at) < LOOK_AGAIN {
            return;
        }
        self.looked_at = now;
        let Self { strangers, endpoints, by_class, .. } = self;
        strangers.retain(|id| {
            let Some(entry) = endpoints.get_mut(id).filter(|entry| entry.in_flight > 0) else { return false };
            let old = entry.pace.class();
            let new = entry.pace.observe(now);
            by_class[old as usize] = by_class[old as usize].saturating_sub(entry.in_flight);
            by_class[new as usize] += entry.in_flight;
            new == Class::Unproven
        });
    }

    fn take(&mut self, endpoint: &Endpoint, class: Class, source: Source, granted: u16) {
        self.in_flight += granted;
        self.by_class[class as usize] += granted;
        if source == Source::HandOff {
            self.handed_off += granted;
        }
        *self.tenants.entry(endpoint.tenant_id).or_default() += granted;
        if let Some(entry) = self.endpoints.get_mut(&endpoint.endpoint_id) {
            entry.in_flight += granted;
            entry.unpaid += u32::from(granted);
            if class == Class::Unproven {
                self.strangers.insert(endpoint.endpoint_id);
            }
        }
    }

    /// Moves an endpoint's requests in flight from one class's account to another's.
    fn reclassify(&mut self, old: Class, new: Class, in_flight: u16) {
        self.by_class[old as usize] = self.by_class[old as usize].saturating_sub(in_flight);
        self.by_class[new as usize] += in_flight;
    }

    fn forget_idle_endpoints(&mut self, now: Duration) {
        if self.endpoints.len() > MAX_REMEMBERED_ENDPOINTS {
            self.endpoints.retain(|_, entry| {
                entry.in_flight > 0 || entry.bucket.as_ref().is_some_and(|b| !b.is_full(now))
            });
        }
    }
}

impl EndpointState {
    /// Requests that the rate allows now, less those already promised.
    fn affordable(&mut self, rate: Option<Rate>, now: Duration) -> u32 {
        let Some(rate) = rate else {
            self.bucket = None;
            return u32::MAX;
        };
        let bucket = self.bucket.get_or_insert_with(|| Bucket::full(rate, now));
        bucket.set_rate(rate, now);
        bucket.whole_tokens(now).saturating_sub(self.unpaid)
    }
}

impl Permit {
    /// Takes the rate token, right before sending. `Err`: none is there yet; ask again after this time.
    pub fn pay(&mut self, now: Duration) -> Result<(), Duration> {
        if self.is_paid {
            return Ok(());
        }
        let mut state = self.limits.lock();
        let Some(entry) = state.endpoints.get_mut(&self.endpoint_id) else { return Ok(()) };
        if let Some(bucket) = &mut entry.bucket {
            bucket.take(now)?;
        }
        entry.unpaid = entry.unpaid.saturating_sub(1);
        drop(state);
        self.is_paid = true;
        Ok(())
    }

    /// Tells how the request went, which decides what its endpoint may have later.
    pub fn answered(&self, latency: Duration, now: Duration) {
        let mut guard = self.limits.lock();
        let state = &mut *guard;
        let Some(entry) = state.endpoints.get_mut(&self.endpoint_id) else { return };
        let old = entry.pace.class();
        let new = entry.pace.answered(latency, now);
        let in_flight = entry.in_flight;
        state.reclassify(old, new, in_flight);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut guard = self.limits.lock();
        let state = &mut *guard;
        state.in_flight = state.in_flight.saturating_sub(1);
        if self.source == Source::HandOff {
            state.handed_off = state.handed_off.saturating_sub(1);
        }
        if let Some(used) = state.tenants.get_mut(&self.tenant_id) {
            *used = used.saturating_sub(1);
            if *used == 0 {
                state.tenants.remove(&self.tenant_id);
            }
        }
        if let Some(entry) = state.endpoints.get_mut(&self.endpoint_id) {
            entry.in_flight = entry.in_flight.saturating_sub(1);
            if !self.is_paid {
                entry.unpaid = entry.unpaid.saturating_sub(1);
            }
            if entry.in_flight == 0 {
                entry.pace.idle();
            }
            let class = entry.pace.class() as usize;
            state.by_class[class] = state.by_class[class].saturating_sub(1);
        }
        drop(guard);
        self.limits.freed.notify_one();
    }
}

#[cfg(test)]
mod tests;
