//! The one clock of a measurement: monotonic, in nanoseconds, the same for generator and sink, which share the process.

use std::{sync::LazyLock, time::Instant};

#[expect(
    clippy::disallowed_methods,
    reason = "a measurement is about real time; this is the only place that reads it"
)]
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since the first call; never 0, which stands for "not yet".
pub(crate) fn now_ns() -> u64 {
    u64::try_from(START.elapsed().as_nanos()).map_or(u64::MAX, |ns| ns.saturating_add(1))
}
