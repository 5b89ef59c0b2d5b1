//! The machine's clock: a soak measures real processes by real time.

use std::time::Instant;

use time::OffsetDateTime;

/// The wall clock, which the database on this machine shares.
#[expect(clippy::disallowed_methods, reason = "processes of their own cannot be given a clock")]
pub(crate) fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// For durations.
#[expect(clippy::disallowed_methods, reason = "processes of their own cannot be given a clock")]
pub(crate) fn monotonic() -> Instant {
    Instant::now()
}
