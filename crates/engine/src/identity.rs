//! Who this process is to the others, for as long as its heart beats.
//!
//! A process that was declared dead lost its leases for good: it drops what it has in hand under the old identity and
//! goes on under a fresh one.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use postrider_core::{delivery::LeaseId, id::InstanceId};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{heartbeat::TIME_TO_LIVE, worker::LATEST_START};

/// A beat older than this says nothing about now: half of the time after which others declare a heart dead.
const FRESH: Duration = TIME_TO_LIVE.checked_div(2).expect("two is not zero");

/// One life of the process.
#[derive(Debug)]
pub struct Life {
    pub instance_id: InstanceId,
    /// Cancelled when the others have declared this life over: nothing more may be sent under it.
    pub ended: CancellationToken,
    /// Monotonic milliseconds of the last beat that the database took; 0 before the first.
    beat_at_ms: AtomicU64,
    held: Mutex<HashSet<LeaseId>>,
}

/// The current life; shared by all tasks.
#[derive(Debug)]
pub struct Identity(RwLock<Arc<Life>>);

/// Remembers that this process holds a lease, until dropped. What the database says it holds beyond that came from a
/// commit whose answer was lost, and is taken back. The same delivery may be claimed again before the result of the claim
/// before is known to be written, so each claim is remembered for itself.
#[derive(Debug)]
#[must_use]
pub struct Held {
    life: Arc<Life>,
    lease: LeaseId,
}

impl Life {
    fn begin() -> Arc<Self> {
        Arc::new(Self {
            instance_id: InstanceId::from_uuid(Uuid::now_v7()),
            ended: CancellationToken::new(),
            beat_at_ms: AtomicU64::new(0),
            held: Mutex::default(),
        })
    }

    pub fn hold(self: &Arc<Self>, lease: LeaseId) -> Held {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(lease);
        Held { life: Arc::clone(self), lease }
    }

    /// The others know of this life.
    pub fn is_registered(&self) -> bool {
        self.beat_at_ms.load(Ordering::Acquire) > 0
    }

    /// Whether the heart beat lately. Otherwise nothing may be claimed under this life: before the first beat nobody
    /// would notice its death, and after a long pause it may be over.
    pub fn is_beating(&self, now: Duration) -> bool {
        self.is_registered() && self.beat_age(now) < FRESH
    }

    /// Whether this life can still be trusted: others call a heart dead no sooner than its time to live after its last
    /// beat.
    pub fn is_alive(&self, now: Duration) -> bool {
        self.beat_age(now) < LATEST_START
    }

    fn beat_age(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_millis(self.beat_at_ms.load(Ordering::Acquire)))
    }

    /// The database took a beat that began at `now`.
    pub fn has_beaten(&self, now: Duration) {
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.beat_at_ms.store(now_ms.max(1), Ordering::Release);
    }

    /// The leases this process knows it holds.
    pub fn held(&self) -> Vec<LeaseId> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

impl Held {
    pub const fn life(&self) -> &Arc<Life> {
        &self.life
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.life.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.lease);
    }
}

impl Identity {
    pub fn new() -> Self {
        Self(RwLock::new(Life::begin()))
    }

    pub fn life(&self) -> Arc<Life> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the current life and begins another.
    pub fn renew(&self) -> Arc<Life> {
        let fresh = Life::begin();
        let old = std::mem::replace(
            &mut *self.0.write().unwrap_or_else(PoisonError::into_inner),
            Arc::clone(&fresh),
        );
        old.ended.cancel();
        fresh
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heart_beats_from_its_first_beat_until_it_pauses() {
        let life = Identity::new().life();
        let seconds = Duration::from_secs;
        assert!(!life.is_beating(seconds(0)) && !life.is_registered());
        life.has_beaten(seconds(0));
        assert!(life.is_beating(seconds(4)) && life.is_registered());
        assert!(
            !life.is_beating(seconds(7)) && life.is_alive(seconds(7)),
            "it claims no more, and still sends"
        );
        assert!(!life.is_alive(seconds(9)), "it may be declared dead before its request is on the way");
        life.has_beaten(seconds(16));
        assert!(life.is_beating(seconds(17)));
    }

    fn lease(delivery: u128, token: u128) -> LeaseId {
        LeaseId { delivery_id: Uuid::from_u128(delivery).into(), token: Uuid::from_u128(token).into() }
    }

    #[test]
    fn a_new_life_ends_the_old_one_and_holds_nothing() {
        let identity = Identity::new();
        let first = identity.life();
        let held = first.hold(lease(7, 1));
        assert_eq!(first.held(), [lease(7, 1)]);
        let second = identity.renew();
        assert!(first.ended.is_cancelled());
        assert!(!second.ended.is_cancelled());
        assert_ne!(first.instance_id, second.instance_id);
        assert!(second.held().is_empty());
        drop(held);
        assert!(first.held().is_empty());
    }

    #[test]
    fn a_claim_is_held_although_an_earlier_one_of_the_same_delivery_is_let_go() {
        let life = Identity::new().life();
        let earlier = life.hold(lease(7, 1));
        let later = life.hold(lease(7, 2));
        drop(earlier);
        assert_eq!(life.held(), [lease(7, 2)]);
        drop(later);
        assert!(life.held().is_empty());
    }
}
