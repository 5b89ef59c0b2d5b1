//! The line at an endpoint whose own concurrency is used up: deliveries that are claimed and go out as soon as one of its
//! requests ends. Without it a busy endpoint would wait for the database after each of its requests, and each would cost
//! a claim of its own.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use postrider_core::id::{EndpointId, TenantId};
use postrider_store::routing::Endpoint;
use tokio::sync::oneshot;

use super::{Limits, Permit, Source, State, own_cap};

/// Deliveries in one line.
pub(super) const LONGEST_LINE: usize = 256;
/// Deliveries in all lines together.
const ALL_IN_LINE: usize = 1_024;
/// Whoever has waited this long goes back to the queue: the endpoint has become slow.
pub const LONGEST_WAIT_IN_LINE: Duration = Duration::from_secs(2);

/// Who waits at one endpoint, first in, first out.
#[derive(Debug, Default)]
pub(super) struct Line(VecDeque<Waiting>);

#[derive(Debug)]
struct Waiting {
    tenant_id: TenantId,
    source: Source,
    permit: oneshot::Sender<Permit>,
}

impl Line {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The taker comes back only then, so that it claims many at once.
pub(super) const fn is_half_gone(in_line: usize) -> bool {
    in_line <= LONGEST_LINE / 2
}

/// A place in the line of an endpoint. Dropping it leaves the line.
#[derive(Debug)]
#[must_use]
pub struct Place {
    limits: Arc<Limits>,
    endpoint_id: EndpointId,
    permit: oneshot::Receiver<Permit>,
    is_served: bool,
}

impl Place {
    /// Completes when it is one's turn.
    pub async fn permit(mut self) -> Option<Permit> {
        let permit = (&mut self.permit).await.ok();
        self.is_served = permit.is_some();
        permit
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_served {
            return;
        }
        self.permit.close();
        // A permit that came just now goes back, which takes the lock: so it has to be gone before.
        drop(self.permit.try_recv());
        self.limits.lock().leave_line(self.endpoint_id);
    }
}

/// A permit on its way to whoever is next.
#[must_use]
pub(super) struct Called {
    to: oneshot::Sender<Permit>,
    permit: Permit,
}

impl Called {
    /// Not to be called under the lock: one that has left meanwhile gives the permit back.
    pub(super) fn serve(self) {
        drop(self.to.send(self.permit));
    }
}

impl State {
    /// How many more may line up where so many do.
    pub(super) fn line_room(&self, in_line: usize, source: Source) -> u16 {
        let is_worth_it = match source {
            Source::Queue => is_half_gone(in_line),
            Source::HandOff => !self.queue_waits,
        };
        let room = LONGEST_LINE.saturating_sub(in_line).min(ALL_IN_LINE.saturating_sub(self.in_line));
        if is_worth_it { u16::try_from(room).unwrap_or(u16::MAX) } else { 0 }
    }

    pub(super) fn line_up(&mut self, limits: &Arc<Limits>, endpoint: &Endpoint, source: Source) -> Place {
        let (to, permit) = oneshot::channel();
        let entry = self.endpoints.entry(endpoint.endpoint_id).or_default();
        if entry.line.0.is_empty() {
            self.lines.push_back(endpoint.endpoint_id);
        }
        entry.line.0.push_back(Waiting { tenant_id: endpoint.tenant_id, source, permit: to });
        self.in_line += 1;
        Place { limits: Arc::clone(limits), endpoint_id: endpoint.endpoint_id, permit, is_served: false }
    }

    /// Forgets those at this endpoint who no longer wait.
    fn leave_line(&mut self, endpoint_id: EndpointId) {
        let Some(entry) = self.endpoints.get_mut(&endpoint_id) else { return };
        let before = entry.line.0.len();
        while entry.line.0.pop_back_if(|waiting| waiting.permit.is_closed()).is_some() {}
        if entry.line.0.len() == before {
            entry.line.0.retain(|waiting| !waiting.permit.is_closed());
        }
        self.in_line -= before - entry.line.0.len();
        if before > 0 && entry.line.0.is_empty() {
            self.lines.retain(|id| *id != endpoint_id);
        }
    }

    /// A request at this endpoint has ended: whose turn is it? The slot may also be one that another line waits for.
    pub(super) fn call_next(&mut self, limits: &Arc<Limits>, endpoint_id: EndpointId) -> Option<Called> {
        self.call(limits, endpoint_id).or_else(|| {
            let next = self.lines.pop_front()?;
            self.lines.push_back(next);
            self.call(limits, next)
        })
    }

    fn call(&mut self, limits: &Arc<Limits>, endpoint_id: EndpointId) -> Option<Called> {
        let entry = self.endpoints.get(&endpoint_id)?;
        let source = entry.line.0.front()?.source;
        let class = entry.pace.class();
        let room = self.room_for_called(limits.total, class, source);
        if room == 0 || own_cap(entry.max_in_flight, class, room) <= entry.in_flight {
            return None;
        }
        let entry = self.endpoints.get_mut(&endpoint_id)?;
        let waiting = entry.line.0.pop_front()?;
        self.in_line -= 1;
        if entry.line.0.is_empty() {
            self.lines.retain(|id| *id != endpoint_id);
        }
        self.take(waiting.tenant_id, endpoint_id, source, 1);
        Some(Called {
            to: waiting.permit,
            permit: Permit::new(limits, waiting.tenant_id, endpoint_id, source),
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::limits::{
        Class, Shortage,
        tests::{NOW, endpoint, prove},
    };

    /// The permit of a place whose turn it is.
    fn called(place: Place) -> Option<Permit> {
        place.permit().now_or_never().flatten()
    }

    #[test]
    fn those_in_line_are_served_in_order_and_nobody_overtakes_them() {
        let limits = Limits::new(100);
        let endpoint = endpoint(1, 1, 1);
        prove(&limits, &endpoint);
        let mut first = limits.acquire(&endpoint, 1, Source::HandOff, NOW).permits;
        let mut places = limits.acquire(&endpoint, 2, Source::HandOff, NOW).places.into_iter();
        let (second, third) = (places.next().expect("a place"), places.next().expect("a place"));
        first.clear();
        let late = limits.acquire(&endpoint, 1, Source::HandOff, NOW);
        assert!(late.permits.is_empty() && late.places.len() == 1);
        assert_eq!(limits.in_flight(), 1);
        let permit = called(second).expect("it was next");
        drop(permit);
        assert!(called(third).is_some());
        drop(late);
        assert_eq!(limits.in_flight(), 0);
        assert_eq!(limits.acquire(&endpoint, 1, Source::HandOff, NOW).permits.len(), 1);
    }

    #[test]
    fn whoever_leaves_makes_room_and_gives_a_permit_back_that_just_came() {
        let limits = Limits::new(100);
        let endpoint = endpoint(1, 1, 1);
        prove(&limits, &endpoint);
        let permits = limits.acquire(&endpoint, 1, Source::HandOff, NOW).permits;
        let mut places = limits.acquire(&endpoint, 3, Source::HandOff, NOW).places;
        drop(places.remove(1));
        drop(permits);
        // The first was called by that, and leaves without having looked.
        drop(places.remove(0));
        assert!(called(places.remove(0)).is_some(), "its turn has come");
        assert_eq!(limits.in_flight(), 0);
        assert_eq!(limits.lock().in_line, 0);
        assert!(limits.lock().lines.is_empty());
    }

    /// Else the taker would ask again and again for an endpoint that has nothing to offer before its line moves.
    #[test]
    fn an_endpoint_with_a_line_and_nothing_in_flight_is_in_use() {
        let limits = Limits::new(1);
        let (endpoint, other) = (endpoint(1, 1, 1), endpoint(2, 2, 1));
        prove(&limits, &endpoint);
        prove(&limits, &other);
        let permit = limits.acquire(&endpoint, 1, Source::Queue, NOW).permits;
        let place = limits.acquire(&endpoint, 1, Source::Queue, NOW).places;
        limits.lock().by_class[Class::Quick as usize] += 1;
        drop(permit);
        assert_eq!((limits.in_flight(), place.len()), (0, 1), "no slot is left for who is next");
        assert!(limits.is_in_use(endpoint.endpoint_id));
        drop(place);
        assert!(!limits.is_in_use(endpoint.endpoint_id) && !limits.is_in_use(other.endpoint_id));
    }

    #[test]
    fn lines_are_bounded_and_the_taker_waits_until_half_of_one_is_gone() {
        let limits = Limits::new(100);
        let endpoint = endpoint(1, 1, 1);
        prove(&limits, &endpoint);
        let first = limits.acquire(&endpoint, 1, Source::Queue, NOW);
        let mut line = limits.acquire(&endpoint, u16::MAX, Source::Queue, NOW);
        assert_eq!((line.places.len(), line.shortage), (LONGEST_LINE, Some(Shortage::Endpoint)));
        assert!(!limits.may_claim_more(endpoint.endpoint_id));
        line.places.truncate(LONGEST_LINE / 2 + 1);
        assert!(limits.acquire(&endpoint, 1, Source::Queue, NOW).places.is_empty());
        line.places.truncate(LONGEST_LINE / 2);
        assert!(limits.may_claim_more(endpoint.endpoint_id));
        assert_eq!(limits.acquire(&endpoint, u16::MAX, Source::Queue, NOW).places.len(), LONGEST_LINE / 2);
        drop(first);
    }

    #[test]
    fn all_lines_together_are_bounded() {
        let limits = Limits::new(1_000);
        let mut held = Vec::new();
        for number in 0..10 {
            let endpoint = endpoint(1, number, 1);
            prove(&limits, &endpoint);
            held.push(limits.acquire(&endpoint, u16::MAX, Source::Queue, NOW));
        }
        assert_eq!(held.iter().map(|grant| grant.places.len()).sum::<usize>(), ALL_IN_LINE);

        // Whoever finds no place keeps its own concurrency: the end of each of its requests makes the taker ask again.
        let late = endpoint(2, 99, 1);
        prove(&limits, &late);
        let permit = limits.acquire(&late, 2, Source::Queue, NOW);
        assert_eq!((permit.places.len(), permit.shortage), (0, Some(Shortage::Endpoint)));
        drop(permit);
        assert!(limits.may_claim_more(late.endpoint_id));
    }

    #[test]
    fn only_quick_endpoints_that_are_their_own_limit_have_a_line() {
        let limits = Limits::new(10);
        let stranger = endpoint(1, 1, 50);
        assert!(limits.acquire(&stranger, 50, Source::Queue, NOW).places.is_empty(), "it may hang");
        let wide = endpoint(1, 2, 50);
        prove(&limits, &wide);
        let held = limits.acquire(&wide, 50, Source::Queue, NOW);
        assert_eq!((held.places.len(), held.shortage), (0, Some(Shortage::Slots)));
        let later = NOW + Duration::from_secs(2);
        assert!(limits.acquire(&wide, 50, Source::Queue, later).places.is_empty(), "it is silent");
    }
}
