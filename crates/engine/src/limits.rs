//! Permits: who may send how much at once, and how fast. A permit is taken before a row is claimed.
//!
//! Invariants, whatever hangs or fails:
//! - an endpoint never has more requests in flight than it allows, and none is sent without a rate token;
//! - endpoints that answer quickly share all slots among themselves: those that do not have budgets of their own, half
//!   as much for the slow and a quarter for those not known yet, so that neither kind takes from the other or from the
//!   quick ones;
//! - all requests together stay below a ceiling, and deliveries handed over straight from ingest leave a share to those
//!   that wait in the queue;
//! - an endpoint that answers quickly has a short line of claimed deliveries, so that its next request need not wait for
//!   the database. Whoever waits there too long leaves it unsent.

mod line;
mod pace;
mod permit;
mod shared;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use postrider_core::{
    bucket::Bucket,
    id::{EndpointId, TenantId},
};
use postrider_store::{endpoints::Rate, routing::Endpoint};
use tokio::sync::Notify;

pub use line::{LONGEST_WAIT_IN_LINE, Place};
pub use permit::Permit;

use line::{Line, is_half_gone};
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
    /// For what goes beyond the endpoint's concurrency, as far as its line has room.
    pub places: Vec<Place>,
    /// Where fewer were granted than asked for: what it waits for.
    pub shortage: Option<Shortage>,
}

/// What a delivery needs before it is claimed.
#[derive(Debug)]
#[must_use]
pub enum Admission {
    /// It may be sent at once.
    Permit(Permit),
    /// It may be sent in a moment: when those before it are through.
    Place(Place),
}

impl Grant {
    /// Permits first.
    pub fn admissions(self) -> Vec<Admission> {
        let permits = self.permits.into_iter().map(Admission::Permit);
        permits.chain(self.places.into_iter().map(Admission::Place)).collect()
    }
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
    /// Deliveries that wait in all lines together, and the endpoints that have one.
    in_line: usize,
    lines: VecDeque<EndpointId>,
}

#[derive(Debug, Default)]
struct EndpointState {
    in_flight: u16,
    /// Permits given out whose rate token has not been taken yet.
    unpaid: u32,
    pace: Pace,
    bucket: Option<Bucket>,
    max_in_flight: u16,
    timeout: Duration,
    /// Those who share its limits have nothing for this process before.
    held_until: Duration,
    line: Line,
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

    /// Whether an endpoint has a request in flight, or somebody in line, whose end will make room.
    pub fn is_in_use(&self, endpoint_id: EndpointId) -> bool {
        let state = self.lock();
        state.endpoints.get(&endpoint_id).is_some_and(|entry| entry.in_flight > 0 || entry.line.len() > 0)
    }

    /// Whether it is worth asking again for an endpoint that the taker found fully used: not while much of its line is
    /// left. However full all lines together are, an endpoint without one has its own concurrency.
    pub fn may_claim_more(&self, endpoint_id: EndpointId) -> bool {
        self.lock().endpoints.get(&endpoint_id).is_none_or(|entry| is_half_gone(entry.line.len()))
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
        entry.max_in_flight = endpoint.max_in_flight.get();
        entry.timeout = endpoint.timeout;
        let old_class = entry.pace.class();
        let class = entry.pace.observe(now);
        let in_flight = entry.in_flight;
        let affordable = entry.affordable(endpoint.rate, now);
        let held = entry.held_until.saturating_sub(now);
        let in_line = entry.line.len();
        state.reclassify(old_class, class, in_flight);

        if class == Class::Unproven {
            state.look_at_strangers(now);
        }
        let room = state.room(self.total, class, source);
        let own_room = own_cap(endpoint.max_in_flight.get(), class, room).saturating_sub(in_flight);
        // Nobody overtakes those in line.
        let free = if in_line > 0 { 0 } else { room.min(own_room) };
        let granted = wanted.min(free).min(u16::try_from(affordable).unwrap_or(u16::MAX));
        // A line moves as fast as the endpoint answers; where slots or tokens are short, the wait could be long.
        let is_own_limit = in_line > 0 || own_room <= room;
        let may_line_up = class == Class::Quick && endpoint.rate.is_none() && is_own_limit && held.is_zero();
        let lined_up = if may_line_up { state.line_room(in_line, source).min(wanted - granted) } else { 0 };
        let shortage = if granted + lined_up == wanted {
            None
        } else if granted < free {
            let bucket = state.endpoints.get(&endpoint.endpoint_id).and_then(|entry| entry.bucket.as_ref());
            Some(Shortage::Rate(bucket.map_or(Duration::ZERO, |bucket| bucket.wait(1, now)).max(held)))
        } else if own_room < room || in_line > 0 {
            Some(Shortage::Endpoint)
        } else {
            Some(Shortage::Slots)
        };
        if source == Source::Queue && class == Class::Quick {
            // Only a lack of slots counts: an endpoint that is short of its own keeps nobody else from handing over.
            state.queue_waits = room < wanted.min(own_room);
        }
        if granted > 0 {
            state.take(endpoint.tenant_id, endpoint.endpoint_id, source, granted);
            if let Some(entry) = state.endpoints.get_mut(&endpoint.endpoint_id) {
                entry.pace.started(now);
            }
        }
        let places = (0..lined_up).map(|_| state.line_up(self, endpoint, source)).collect();
        drop(guard);
        let permit = || Permit::new(self, endpoint.tenant_id, endpoint.endpoint_id, source);
        Grant { permits: std::iter::repeat_with(permit).take(granted.into()).collect(), places, shortage }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Slots that a request of this class and source may still use.
    fn room(&self, total: u16, class: Class, source: Source) -> u16 {
        match source {
            // The queue was there first.
            Source::HandOff if self.queue_waits => 0,
            Source::HandOff | Source::Queue => self.room_for_called(total, class, source),
        }
    }

    /// The same for those in line, who lined up when nobody in the queue waited for a slot.
    fn room_for_called(&self, total: u16, class: Class, source: Source) -> u16 {
        let budget = match class {
            Class::Quick => total,
            Class::Unproven => total.div_ceil(4),
            Class::Slow => total.div_ceil(2),
        };
        let for_class = budget.saturating_sub(self.by_class[class as usize]);
        let for_all = total.saturating_mul(CEILING).saturating_sub(self.in_flight);
        let for_source = match source {
            Source::Queue => u16::MAX,
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

    fn take(&mut self, tenant_id: TenantId, endpoint_id: EndpointId, source: Source, granted: u16) {
        let Some(entry) = self.endpoints.get_mut(&endpoint_id) else { return };
        entry.in_flight += granted;
        entry.unpaid += u32::from(granted);
        let class = entry.pace.class();
        self.in_flight += granted;
        self.by_class[class as usize] += granted;
        if source == Source::HandOff {
            self.handed_off += granted;
        }
        *self.tenants.entry(tenant_id).or_default() += granted;
        if class == Class::Unproven {
            self.strangers.insert(endpoint_id);
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
                entry.in_flight > 0
                    || entry.line.len() > 0
                    || entry.bucket.as_ref().is_some_and(|bucket| !bucket.is_full(now))
            });
        }
    }
}

/// How many requests in flight an endpoint of this class may have, where so many slots are left for its kind.
fn own_cap(max_in_flight: u16, class: Class, room: u16) -> u16 {
    max_in_flight.min(match class {
        Class::Quick => u16::MAX,
        Class::Unproven => UNPROVEN_IN_FLIGHT,
        // A slow endpoint may use a good part of what is free for its kind, and leaves some to the next.
        Class::Slow => UNPROVEN_IN_FLIGHT.max(room / 4),
    })
}

impl EndpointState {
    /// Requests that the rate allows now, less those already promised.
    fn affordable(&mut self, rate: Option<Rate>, now: Duration) -> u32 {
        let is_held = now < self.held_until;
        let Some(rate) = rate else {
            self.bucket = None;
            return if is_held { 0 } else { u32::MAX };
        };
        let bucket = self.bucket.get_or_insert_with(|| Bucket::full(rate, now));
        bucket.set_rate(rate, now);
        if is_held { 0 } else { bucket.whole_tokens(now).saturating_sub(self.unpaid) }
    }
}

#[cfg(test)]
mod tests;
