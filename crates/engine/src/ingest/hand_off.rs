//! Hand-off: deliveries that are born claimed by the process that stores their event, and sent straight after the commit.

use std::sync::Arc;

use postrider_core::{
    delivery::LeaseId,
    id::{DeliveryId, LeaseToken},
};
use postrider_store::routing::Endpoint;

use super::IngestLane;
use crate::{
    identity::{Held, Life},
    limits::{Admission, Source},
};

/// A larger event is not born claimed for a place in line: it waits in the database until the taker comes to it.
const LARGEST_BODY_IN_LINE: usize = 16 * 1024;

/// In whose name, and with which token, the deliveries of one batch are born claimed.
pub(super) struct Claimer {
    pub(super) life: Option<Arc<Life>>,
    pub(super) token: LeaseToken,
}

/// What a delivery that is born claimed may be sent with.
pub(super) struct Claim {
    pub(super) admission: Admission,
    pub(super) held: Held,
    pub(super) endpoint: Arc<Endpoint>,
}

impl<T> IngestLane<T> {
    /// Permission to send straight after the commit: only where a permit is free or will be in a moment, and nothing
    /// older waits for the endpoint, so that order stays roughly first in, first out. With a broker never: its messages are
    /// spread over all workers.
    pub(super) fn claim(
        &self,
        endpoint: &Arc<Endpoint>,
        delivery_id: DeliveryId,
        body_bytes: usize,
        claimer: &Claimer,
    ) -> Option<Claim> {
        let (worker, life) = (self.worker.as_ref()?, claimer.life.as_ref()?);
        if self.queue.is_some() {
            return None;
        }
        let now = worker.clock.monotonic();
        let is_ready = life.is_beating(now) && !worker.shutdown.is_draining();
        if !is_ready || worker.ready.contains(endpoint.endpoint_id) {
            return None;
        }
        let admission = worker.limits.acquire(endpoint, 1, Source::HandOff, now).admissions().pop()?;
        if matches!(admission, Admission::Place(_)) && body_bytes > LARGEST_BODY_IN_LINE {
            return None;
        }
        let held = life.hold(LeaseId { delivery_id, token: claimer.token });
        Some(Claim { admission, held, endpoint: Arc::clone(endpoint) })
    }
}
