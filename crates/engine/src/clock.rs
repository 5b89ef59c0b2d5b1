//! Time as a port: the wall clock for signatures, a monotonic one for lengths and waits. Tests put a clock of their own
//! in its place.

use std::{fmt::Debug, time::Duration};

use futures::future::BoxFuture;
use time::OffsetDateTime;

/// Where the engine gets its time from.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The time of day, UTC. Never compared with the database's.
    fn now(&self) -> OffsetDateTime;

    /// Time since some fixed moment; never goes back, and goes on while the process is stopped.
    fn monotonic(&self) -> Duration;

    /// Completes when this much time has passed.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is where the Clock port meets the machine")]
    pub fn new() -> Self {
        Self { start: std::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is where the Clock port meets the machine")]
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
