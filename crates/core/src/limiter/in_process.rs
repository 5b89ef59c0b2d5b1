//! The limits of one process: where nothing is shared, and while what is shared is away.

use std::{
    collections::HashMap,
    fmt,
    future::ready,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{Answer, Entry, LEASE_WAIT, LONGEST_LEASE, LeaseId, Limiter, Reach, Taken};
use crate::port::Pending;
use crate::{
    bucket::{Bucket, Rate},
    id::{EndpointId, TenantId},
};

/// Tenants remembered, and endpoints; beyond that the idle ones are forgotten.
const MAX_REMEMBERED: usize = 10_000;

/// Time that only goes forward, from any beginning.
pub type Monotonic = dyn Fn() -> Duration + Send + Sync;

/// Limits that hold in this process.
pub struct InProcess {
    monotonic: Arc<Monotonic>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    endpoints: HashMap<EndpointId, Endpoint>,
    tenants: HashMap<TenantId, Bucket>,
}

#[derive(Default)]
struct Endpoint {
    bucket: Option<Bucket>,
    /// When each lease ends by itself.
    leases: HashMap<LeaseId, Duration>,
}

/// What is as good as new when it is idle.
trait Idle {
    fn is_idle(&self, now: Duration) -> bool;
}

impl InProcess {
    pub fn new(monotonic: Arc<Monotonic>) -> Self {
        Self { monotonic, state: Mutex::default() }
    }

    /// [`Limiter::enter`], at once.
    pub fn enter_now(&self, entry: &Entry) -> Answer {
        self.with(|state, now| {
            make_room(&mut state.endpoints, &entry.endpoint_id, now);
            state.endpoints.entry(entry.endpoint_id).or_default().enter(entry, now)
        })
    }

    /// [`Limiter::take`], at once.
    pub fn take_now(&self, tenant_id: TenantId, rate: Rate, count: u32) -> Taken {
        self.with_bucket(tenant_id, rate, |bucket, now| {
            let answer = bucket.take(count, now).map_or_else(Answer::Wait, |()| Answer::Granted);
            Taken { answer, level: bucket.level(now) }
        })
    }

    /// Goes on with what others know of a tenant's bucket: so many tokens are in it.
    pub fn learn(&self, tenant_id: TenantId, rate: Rate, tokens: f64) -> Taken {
        self.with_bucket(tenant_id, rate, |bucket, now| {
            bucket.set_tokens(tokens, now);
            look(bucket, now)
        })
    }

    fn with_bucket<T>(
        &self,
        tenant_id: TenantId,
        rate: Rate,
        work: impl FnOnce(&mut Bucket, Duration) -> T,
    ) -> T {
        self.with(|state, now| {
            make_room(&mut state.tenants, &tenant_id, now);
            let bucket = state.tenants.entry(tenant_id).or_insert_with(|| Bucket::full(rate, now));
            bucket.set_rate(rate, now);
            work(bucket, now)
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut State, Duration) -> T) -> T {
        let now = (self.monotonic)();
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner), now)
    }
}

impl Limiter for InProcess {
    fn enter(&self, entry: Entry) -> Pending<'_, Answer> {
        Box::pin(ready(self.enter_now(&entry)))
    }

    fn leave(&self, endpoint_id: EndpointId, lease_id: LeaseId) {
        self.with(|state, _| {
            if let Some(endpoint) = state.endpoints.get_mut(&endpoint_id) {
                endpoint.leases.remove(&lease_id);
            }
        });
    }

    fn take(&self, tenant_id: TenantId, rate: Rate, count: u32) -> Pending<'_, Taken> {
        Box::pin(ready(self.take_now(tenant_id, rate, count)))
    }

    fn look(&self, tenant_id: TenantId, rate: Rate) -> Taken {
        self.with_bucket(tenant_id, rate, look)
    }

    fn reach(&self) -> Reach {
        Reach::Process
    }
}

fn look(bucket: &mut Bucket, now: Duration) -> Taken {
    let level = bucket.level(now);
    let answer = if level.tokens == 0 { Answer::Wait(bucket.wait(1, now)) } else { Answer::Granted };
    Taken { answer, level }
}

impl Endpoint {
    fn enter(&mut self, entry: &Entry, now: Duration) -> Answer {
        self.leases.retain(|_, end| *end > now);
        if self.leases.contains_key(&entry.lease_id) {
            return Answer::Granted;
        }
        if self.leases.len() >= usize::from(entry.max_in_flight.get()) {
            return Answer::Wait(LEASE_WAIT);
        }
        match entry.rate {
            None => self.bucket = None,
            Some(rate) => {
                let bucket = self.bucket.get_or_insert_with(|| Bucket::full(rate, now));
                bucket.set_rate(rate, now);
                if let Err(wait) = bucket.take(1, now) {
                    return Answer::Wait(wait);
                }
            }
        }
        self.leases.insert(entry.lease_id, now + entry.lifetime.min(LONGEST_LEASE));
        Answer::Granted
    }
}

impl Idle for Bucket {
    fn is_idle(&self, now: Duration) -> bool {
        self.is_full(now)
    }
}

impl Idle for Endpoint {
    fn is_idle(&self, now: Duration) -> bool {
        let is_full = self.bucket.as_ref().is_none_or(|bucket| bucket.is_full(now));
        is_full && self.leases.values().all(|end| *end <= now)
    }
}

/// Forgets the idle where one more would be too many, and everybody where nobody is idle.
fn make_room<K: Hash + Eq, V: Idle>(remembered: &mut HashMap<K, V>, key: &K, now: Duration) {
    if remembered.len() >= MAX_REMEMBERED && !remembered.contains_key(key) {
        remembered.retain(|_, value| !value.is_idle(now));
        if remembered.len() >= MAX_REMEMBERED {
            remembered.clear();
        }
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("InProcess")
    }
}

#[cfg(test)]
mod tests {
    use std::{
        num::{NonZeroU16, NonZeroU32},
        sync::atomic::{AtomicU64, Ordering},
    };

    use uuid::Uuid;

    use super::*;

    /// Limits, and the seconds of their clock.
    fn limits() -> (InProcess, Arc<AtomicU64>) {
        let seconds = Arc::<AtomicU64>::default();
        let clock = Arc::clone(&seconds);
        let monotonic = Arc::new(move || Duration::from_secs(clock.load(Ordering::Relaxed)));
        (InProcess::new(monotonic), seconds)
    }

    fn tenant(number: usize) -> TenantId {
        TenantId::from_uuid(Uuid::from_u128(number as u128))
    }

    fn rate(per_second: f64, burst: u32) -> Rate {
        Rate { per_second, burst: NonZeroU32::new(burst).expect("not zero") }
    }

    #[test]
    fn each_tenant_has_a_bucket_of_its_own_and_a_changed_rate_holds_at_once() {
        let (limits, _) = limits();
        let take = |number, rate, count| {
            let taken = limits.take_now(tenant(number), rate, count);
            match taken.answer {
                Answer::Granted => Ok(taken.level.tokens),
                Answer::Wait(wait) => Err(wait.as_millis()),
            }
        };
        assert_eq!(take(1, rate(1.0, 3), 2), Ok(1));
        assert_eq!(take(2, rate(1.0, 3), 3), Ok(0));
        assert_eq!(take(1, rate(1.0, 3), 2), Err(1_000));
        assert_eq!(take(1, rate(2.0, 3), 2), Err(500));
        let look = |number| limits.look(tenant(number), rate(1.0, 3)).answer;
        assert!(look(1) == Answer::Granted && look(2) != Answer::Granted);
        let _ = limits.learn(tenant(1), rate(1.0, 3), -1.5);
        assert_eq!(look(1), Answer::Wait(Duration::from_micros(2_500_001)), "somebody else took some");
    }

    #[test]
    fn idle_tenants_are_forgotten_and_a_crowd_is_bounded() {
        let (limits, seconds) = limits();
        let take = |number| limits.take_now(tenant(number), rate(1.0, 1), 1).answer;
        let count = || limits.state.lock().expect("not poisoned").tenants.len();
        for number in (0..MAX_REMEMBERED).rev() {
            // All but ten have taken their token long ago.
            if number == 9 {
                seconds.store(8, Ordering::Relaxed);
            }
            assert_eq!(take(number), Answer::Granted);
        }
        assert_eq!(take(usize::MAX), Answer::Granted);
        assert_eq!(count(), 11);
        assert_ne!(take(3), Answer::Granted, "who is not idle is remembered");
        for number in 10..2 * MAX_REMEMBERED {
            assert_eq!(take(number), Answer::Granted);
            assert!(count() <= MAX_REMEMBERED);
        }
    }

    #[test]
    fn an_endpoint_with_a_lease_is_not_idle() {
        let (limits, seconds) = limits();
        let enter = |number: u128| {
            limits.enter_now(&Entry {
                endpoint_id: EndpointId::from_uuid(Uuid::from_u128(number)),
                lease_id: LeaseId::from(Uuid::from_u128(number)),
                max_in_flight: NonZeroU16::MIN,
                rate: None,
                lifetime: Duration::from_secs(if number == 0 { 9 } else { 1 }),
            })
        };
        let count = || limits.state.lock().expect("not poisoned").endpoints.len();
        for number in 0..MAX_REMEMBERED as u128 {
            assert_eq!(enter(number), Answer::Granted);
        }
        seconds.store(2, Ordering::Relaxed);
        assert_eq!(enter(u128::MAX), Answer::Granted);
        assert_eq!(count(), 2);
    }
}
