//! How many requests an endpoint gets at a time, and how long an answer may take: the bounds of what its owner chooses.
//! How many it gets in a second is [`crate::bucket::Rate`].

use std::{num::NonZeroU16, ops::RangeInclusive, time::Duration};

/// Bounds of the time for one request: long enough for a slow receiver, short enough to end within a lease.
pub const TIMEOUT_BOUNDS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);
/// Most requests at a time that an endpoint may allow.
pub const MAX_IN_FLIGHT_BOUND: NonZeroU16 = NonZeroU16::new(1_000).expect("not zero");
pub const DEFAULT_MAX_IN_FLIGHT: NonZeroU16 = NonZeroU16::new(32).expect("not zero");
