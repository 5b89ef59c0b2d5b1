//! The one clock of a measurement: the kernel's monotonic one, the same for generator, sink and the timer of the open
//! loop.

use rustix::time::{ClockId, clock_gettime};

const NS_PER_S: u64 = 1_000_000_000;

/// Nanoseconds since the machine started; never 0, which stands for "not yet".
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or_default() * NS_PER_S + u64::try_from(now.tv_nsec).unwrap_or_default()
}
