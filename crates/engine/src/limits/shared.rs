//! An endpoint's limits over all processes, on top of this one's: asked right before a request is sent.

use std::{num::NonZeroU16, sync::Arc, time::Duration};

use postrider_core::{
    bucket::Bucket,
    id::EndpointId,
    limiter::{Answer, Entry, LONGEST_LEASE, LeaseId, Limiter},
};
use uuid::Uuid;

use super::Permit;
use crate::{
    deliver::LONGEST_TOKEN_WAIT,
    worker::{LATEST_START, LONGEST_ATTEMPT},
};

/// Time for what follows the longest request that a lease is for.
const MARGIN: Duration = Duration::from_secs(2);

const _: () = assert!(
    LATEST_START.as_secs() + LONGEST_ATTEMPT.as_secs() + MARGIN.as_secs() <= LONGEST_LEASE.as_secs(),
    "a lease outlives its request"
);

/// The right to one request at an endpoint, of those that all processes have together, or the wish for it. Dropping it
/// gives it back.
#[derive(Debug)]
pub(super) struct Lease {
    limiter: Arc<dyn Limiter>,
    endpoint_id: EndpointId,
    id: LeaseId,
    is_granted: bool,
}

impl Permit {
    /// Asks those who share the endpoint's limits. `Err`: not yet; ask again after this time, before which this process
    /// claims nothing more for the endpoint.
    pub async fn enter(&mut self, limiter: &Arc<dyn Limiter>, now: Duration) -> Result<(), Duration> {
        let endpoint_id = self.endpoint_id;
        // Before it is asked for: whoever is cancelled meanwhile may have got it.
        let lease = self.lease.get_or_insert_with(|| Lease {
            limiter: Arc::clone(limiter),
            endpoint_id,
            id: LeaseId::from(Uuid::now_v7()),
            is_granted: false,
        });
        if lease.is_granted {
            return Ok(());
        }
        let Some(entry) = self.limits.entry(endpoint_id, lease.id) else { return Ok(()) };
        match limiter.enter(entry).await {
            Answer::Granted => {
                lease.is_granted = true;
                Ok(())
            }
            Answer::Wait(wait) => {
                // Not for as long as a slow rate makes the last of many wait: what is true now may change before.
                self.limits.hold_back(endpoint_id, now + wait.min(LONGEST_TOKEN_WAIT));
                Err(wait)
            }
        }
    }
}

impl super::Limits {
    /// `None`: the endpoint is forgotten, which none is that has a permit.
    fn entry(&self, endpoint_id: EndpointId, lease_id: LeaseId) -> Option<Entry> {
        let state = self.lock();
        let endpoint = state.endpoints.get(&endpoint_id)?;
        Some(Entry {
            endpoint_id,
            lease_id,
            max_in_flight: NonZeroU16::new(endpoint.max_in_flight).unwrap_or(NonZeroU16::MIN),
            rate: endpoint.bucket.as_ref().map(Bucket::rate),
            lifetime: LATEST_START + endpoint.timeout.min(LONGEST_ATTEMPT) + MARGIN,
        })
    }

    fn hold_back(&self, endpoint_id: EndpointId, until: Duration) {
        if let Some(endpoint) = self.lock().endpoints.get_mut(&endpoint_id) {
            endpoint.held_until = endpoint.held_until.max(until);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.limiter.leave(self.endpoint_id, self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        num::NonZeroU32,
        sync::{Mutex, OnceLock},
    };

    use futures::FutureExt as _;
    use postrider_core::{
        bucket,
        id::TenantId,
        limiter::{InProcess, Reach, Taken},
        port::Pending,
    };

    use super::*;
    use crate::limits::{
        Limits, Shortage, Source,
        tests::{NOW, endpoint, prove},
    };

    /// Limits that another process uses, too, and what was asked of them.
    #[derive(Debug)]
    struct Shared {
        limits: InProcess,
        asked: Mutex<Vec<Entry>>,
        /// One of the processes, and how many requests it had in flight whenever something was given back.
        watched: OnceLock<Arc<Limits>>,
        seen: Mutex<Vec<u16>>,
    }

    impl Limiter for Shared {
        fn enter(&self, entry: Entry) -> Pending<'_, Answer> {
            self.asked.lock().expect("not poisoned").push(entry);
            self.limits.enter(entry)
        }

        fn leave(&self, endpoint_id: EndpointId, lease_id: LeaseId) {
            let seen = self.watched.get().map(|limits| limits.in_flight());
            self.seen.lock().expect("not poisoned").extend(seen);
            self.limits.leave(endpoint_id, lease_id);
        }

        fn take(&self, tenant_id: TenantId, rate: bucket::Rate, count: u32) -> Pending<'_, Taken> {
            self.limits.take(tenant_id, rate, count)
        }

        fn look(&self, tenant_id: TenantId, rate: bucket::Rate) -> Taken {
            self.limits.look(tenant_id, rate)
        }

        fn reach(&self) -> Reach {
            Reach::Shared
        }
    }

    fn shared() -> (Arc<Shared>, Arc<dyn Limiter>) {
        let limits = InProcess::new(Arc::new(|| NOW));
        let (asked, watched, seen) = (Mutex::default(), OnceLock::new(), Mutex::default());
        let shared = Arc::new(Shared { limits, asked, watched, seen });
        (Arc::clone(&shared), shared)
    }

    fn enter(permit: &mut Permit, limiter: &Arc<dyn Limiter>) -> Result<(), Duration> {
        permit.enter(limiter, NOW).now_or_never().expect("nobody is waited for")
    }

    #[test]
    fn what_is_refused_is_not_paid_and_nothing_more_is_claimed_before_the_wait_is_over() {
        let (shared, limiter) = shared();
        let (mine, others) = (Limits::new(100), Limits::new(100));
        let mut endpoint = endpoint(1, 1, 2);
        endpoint.rate = Some(bucket::Rate { per_second: 10.0, burst: NonZeroU32::new(9).expect("not zero") });
        prove(&mine, &endpoint);
        prove(&others, &endpoint);
        let mut theirs = others.acquire(&endpoint, 2, Source::Queue, NOW).permits;
        for permit in &mut theirs {
            assert_eq!(enter(permit, &limiter), Ok(()));
            assert_eq!(enter(permit, &limiter), Ok(()), "once granted it is not asked for again");
        }
        assert_eq!(shared.asked.lock().expect("not poisoned").len(), 2);
        let entry = shared.asked.lock().expect("not poisoned")[0];
        assert_eq!((entry.max_in_flight.get(), entry.rate), (2, endpoint.rate));
        assert_eq!(
            entry.lifetime,
            Duration::from_secs(20),
            "until the latest end of its request, and a little more"
        );

        let mut permit = mine.acquire(&endpoint, 1, Source::Queue, NOW).permits;
        let wait = enter(&mut permit[0], &limiter).expect_err("two are in flight, of other processes");
        // An answer that is older changes nothing.
        let older = permit[0]
            .enter(&limiter, NOW.saturating_sub(wait / 2))
            .now_or_never()
            .expect("nobody is waited for");
        assert_eq!(older, Err(wait));
        for source in [Source::Queue, Source::HandOff] {
            let held = mine.acquire(&endpoint, 1, source, NOW);
            assert_eq!(
                (held.permits.len(), held.places.len(), held.shortage),
                (0, 0, Some(Shortage::Rate(wait)))
            );
        }
        assert_eq!(mine.acquire(&endpoint, 1, Source::Queue, NOW + wait).permits.len(), 1);

        drop(theirs);
        assert_eq!(enter(&mut permit[0], &limiter), Ok(()), "a permit that is dropped gives its lease back");
        assert_eq!(permit[0].pay(NOW), Ok(()));
    }

    #[test]
    fn nobody_is_held_back_for_longer_than_a_delivery_waits() {
        let (_, limiter) = shared();
        let limits = Limits::new(100);
        let mut endpoint = endpoint(1, 1, 2);
        endpoint.rate = Some(bucket::Rate { per_second: 0.01, burst: NonZeroU32::new(2).expect("not zero") });
        prove(&limits, &endpoint);
        let others = Limits::new(100);
        prove(&others, &endpoint);
        for permit in &mut others.acquire(&endpoint, 2, Source::Queue, NOW).permits {
            assert_eq!(enter(permit, &limiter), Ok(()));
        }
        let mut permits = limits.acquire(&endpoint, 2, Source::Queue, NOW).permits;
        for permit in &mut permits {
            assert!(enter(permit, &limiter).is_err_and(|wait| wait > LONGEST_TOKEN_WAIT));
        }
        drop(permits);
        assert_eq!(limits.acquire(&endpoint, 1, Source::Queue, NOW).permits.len(), 0);
        let later = NOW + LONGEST_TOKEN_WAIT;
        assert_eq!(limits.acquire(&endpoint, 1, Source::Queue, later).permits.len(), 1, "it may ask again");
    }

    #[test]
    fn whoever_is_dropped_or_panics_gives_its_lease_back() {
        let (shared, limiter) = shared();
        let limits = Limits::new(100);
        shared.watched.set(Arc::clone(&limits)).expect("once");
        let endpoint = endpoint(1, 1, 1);
        prove(&limits, &endpoint);
        for how in ["dropped", "panicked", "dropped"] {
            let mut permit = limits.acquire(&endpoint, 1, Source::Queue, NOW).permits.remove(0);
            assert_eq!(enter(&mut permit, &limiter), Ok(()), "after the one before");
            match how {
                "panicked" => {
                    let held = std::panic::AssertUnwindSafe(permit);
                    let ended = std::panic::catch_unwind(move || {
                        let _held = held;
                        std::panic::resume_unwind(Box::new("on purpose"));
                    });
                    assert!(ended.is_err());
                }
                _ => drop(permit),
            }
        }
        // Whoever is called to the slot next finds the lease free.
        assert_eq!(*shared.seen.lock().expect("not poisoned"), [1; 3], "before its slot");
    }
}
