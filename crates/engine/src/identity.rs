//! Who this process is to the others, for as long as its heart beats.
//!
//! A process that was declared dead lost its leases for good: it drops what it has in hand under the old identity and
//! goes on under a fresh one.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use postrider_core::id::{DeliveryId, InstanceId};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// One life of the process.
#[derive(Debug)]
pub struct Life {
    pub instance_id: InstanceId,
    /// Cancelled when the others have declared this life over: nothing more may be sent under it.
    pub ended: CancellationToken,
    is_registered: AtomicBool,
    held: Mutex<HashSet<DeliveryId>>,
}

/// The current life; shared by all tasks.
#[derive(Debug)]
pub struct Identity(RwLock<Arc<Life>>);

/// Remembers that this process holds a lease, until dropped. What the database says it holds beyond that came from a
/// commit whose answer was lost, and is taken back.
#[derive(Debug)]
#[must_use]
pub struct Held {
    life: Arc<Life>,
    delivery_id: DeliveryId,
}

impl Life {
    fn begin() -> Arc<Self> {
        Arc::new(Self {
            instance_id: InstanceId::from_uuid(Uuid::now_v7()),
            ended: CancellationToken::new(),
            is_registered: AtomicBool::new(false),
            held: Mutex::default(),
        })
    }

    pub fn hold(self: &Arc<Self>, delivery_id: DeliveryId) -> Held {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(delivery_id);
        Held { life: Arc::clone(self), delivery_id }
    }

    /// The others know of this life; before that nothing may be claimed under it, since nobody would notice its death.
    pub fn is_registered(&self) -> bool {
        self.is_registered.load(Ordering::Acquire)
    }

    pub fn registered(&self) {
        self.is_registered.store(true, Ordering::Release);
    }

    /// The deliveries this process knows it holds.
    pub fn held(&self) -> Vec<DeliveryId> {
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
        self.life.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.delivery_id);
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
    fn a_new_life_ends_the_old_one_and_holds_nothing() {
        let identity = Identity::new();
        let first = identity.life();
        let held = first.hold(DeliveryId::from_uuid(Uuid::from_u128(7)));
        assert_eq!(first.held(), [DeliveryId::from_uuid(Uuid::from_u128(7))]);
        let second = identity.renew();
        assert!(first.ended.is_cancelled());
        assert!(!second.ended.is_cancelled());
        assert_ne!(first.instance_id, second.instance_id);
        assert!(second.held().is_empty());
        drop(held);
        assert!(first.held().is_empty());
    }
}
