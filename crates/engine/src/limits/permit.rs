//! The right to have one request in flight.

use std::{sync::Arc, time::Duration};

use postrider_core::id::{EndpointId, TenantId};

use super::{Limits, Source, shared::Lease};

/// The right to have one request in flight. Dropping it gives the slot back, to the first in the endpoint's line.
#[derive(Debug)]
#[must_use]
pub struct Permit {
    pub(super) limits: Arc<Limits>,
    tenant_id: TenantId,
    pub(super) endpoint_id: EndpointId,
    source: Source,
    is_paid: bool,
    /// Where limits are shared.
    pub(super) lease: Option<Lease>,
}

impl Permit {
    pub(super) fn new(
        limits: &Arc<Limits>,
        tenant_id: TenantId,
        endpoint_id: EndpointId,
        source: Source,
    ) -> Self {
        Self { limits: Arc::clone(limits), tenant_id, endpoint_id, source, is_paid: false, lease: None }
    }

    /// Takes the rate token, right before sending. `Err`: none is there yet; ask again after this time.
    pub fn pay(&mut self, now: Duration) -> Result<(), Duration> {
        if self.is_paid {
            return Ok(());
        }
        let mut state = self.limits.lock();
        let Some(entry) = state.endpoints.get_mut(&self.endpoint_id) else { return Ok(()) };
        if let Some(bucket) = &mut entry.bucket {
            bucket.take(1, now)?;
        }
        entry.unpaid = entry.unpaid.saturating_sub(1);
        entry.pace.started(now);
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
        // First, so that whoever is called next finds it free.
        self.lease = None;
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
            let class = entry.pace.class() as usize;
            state.by_class[class] = state.by_class[class].saturating_sub(1);
        }
        let called = state.call_next(&self.limits, self.endpoint_id);
        if let Some(entry) = state.endpoints.get_mut(&self.endpoint_id)
            && entry.in_flight == 0
        {
            entry.pace.idle();
        }
        drop(guard);
        match called {
            Some(called) => called.serve(),
            None => self.limits.freed.notify_one(),
        }
    }
}
