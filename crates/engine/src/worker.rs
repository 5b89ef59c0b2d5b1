//! What all parts of the delivering side share.

use std::{
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use postrider_core::{
    id::{DeliveryId, LeaseToken},
    limiter::Limiter,
    queue::{self, Queue},
};
use postrider_store::outbox::Audience;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::{
    clock::Clock, credentials::Tokens, directory::Directory, heartbeat::TIME_TO_LIVE, identity::Identity,
    limits::Limits, ready::Ready, settle::Concluded, supervisor::Shutdown,
};

/// Longest attempt that an endpoint may ask for; a longer timeout counts as this.
pub const LONGEST_ATTEMPT: Duration = Duration::from_secs(60);
/// An attempt starts at most this long after its claim and after its process's last heartbeat, else the delivery goes
/// back: the process may have been declared dead meanwhile.
pub const LATEST_START: Duration = Duration::from_secs(8);
/// A lease is dead after this time, however alive its owner is: the longest attempt from the latest start, and time to
/// write the result.
pub const LEASE_HARD_LIMIT: Duration = Duration::from_secs(120);

/// What has been ready for so long is taken from the table although a broker is there: its message is lost, or waits
/// behind many others.
const GRACE: Duration = Duration::from_secs(2);

const _: () = assert!(LATEST_START.as_secs() < TIME_TO_LIVE.as_secs());
const _: () = assert!(LATEST_START.as_secs() + LONGEST_ATTEMPT.as_secs() < LEASE_HARD_LIMIT.as_secs());

/// The delivering side of this process.
#[derive(Debug)]
pub struct Worker<T> {
    /// For connections of one's own.
    pub options: PgConnectOptions,
    pub pool: sqlx::PgPool,
    pub clock: Arc<dyn Clock>,
    pub transport: T,
    pub directory: Directory,
    pub tokens: Tokens,
    pub limits: Arc<Limits>,
    /// On top of these, where other processes share them.
    pub limiter: Option<Arc<dyn Limiter>>,
    pub ready: Ready,
    pub identity: Identity,
    /// Processes that live, this one included, as its heart saw them last.
    pub processes: AtomicU32,
    pub dice: Dice,
    /// Messages about what is ready, where a broker is used besides the table.
    pub queue: Option<Arc<dyn Queue>>,
    pub settlements: mpsc::Sender<Concluded>,
    /// The deliveries in hand.
    pub deliveries: TaskTracker,
    pub shutdown: Shutdown,
}

impl<T> Worker<T> {
    /// How long the table leaves what is ready to the messages about it.
    pub fn grace(&self) -> Duration {
        if self.usable_queue().is_some() { GRACE } else { Duration::ZERO }
    }

    /// What brings the messages that are announced now; `None`: the table is all there is.
    pub fn usable_queue(&self) -> Option<&dyn Queue> {
        queue::usable(self.queue.as_ref())
    }

    /// Whether a broker is told, also while it is away.
    pub fn audience(&self) -> Audience {
        Audience::of(self.queue.as_ref())
    }

    /// Completes after this time, or when the drain begins. `false`: it began.
    pub async fn pause(&self, time: Duration) -> bool {
        tokio::select! {
            () = self.clock.sleep(time) => true,
            () = self.shutdown.draining() => false,
        }
    }
}

/// A fresh fencing token.
pub fn fresh_token() -> LeaseToken {
    LeaseToken::from_uuid(Uuid::now_v7())
}

/// Chance that costs nothing on the hot path, and repeats itself when the seed does: mixed from a seed, the delivery
/// and the attempt.
#[derive(Debug, Clone, Copy)]
pub struct Dice(pub u64);

impl Dice {
    /// 64 bits for one attempt.
    pub fn roll(self, delivery_id: DeliveryId, attempt_number: u32) -> u64 {
        let (high, low) = delivery_id.as_uuid().as_u64_pair();
        [high, low, u64::from(attempt_number)].into_iter().fold(self.0, |mixed, part| mix(mixed ^ part))
    }
}

/// The finaliser of `SplitMix64` (Steele, Lea and Flood 2014): every input bit changes half of the output bits.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A fraction in `0.0..1.0` from 64 bits of chance.
#[expect(clippy::cast_precision_loss, reason = "53 bits are what a fraction holds")]
pub fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dice_repeat_themselves_and_differ_between_attempts() {
        let delivery = DeliveryId::from_uuid(Uuid::from_u128(42));
        let rolls: std::collections::HashSet<u64> =
            (0..1_000).map(|attempt| Dice(7).roll(delivery, attempt)).collect();
        assert_eq!(rolls.len(), 1_000);
        assert_eq!(Dice(7).roll(delivery, 1), Dice(7).roll(delivery, 1));
        assert_ne!(Dice(7).roll(delivery, 1), Dice(8).roll(delivery, 1));
        let mean = rolls.into_iter().map(fraction).sum::<f64>() / 1_000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
    }
}
