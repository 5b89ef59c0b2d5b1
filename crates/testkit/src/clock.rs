//! A clock that stands still until the test moves it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use postrider_engine::clock::{Clock, SystemClock};
use time::OffsetDateTime;
use tokio::sync::watch;

/// Clones show the same time.
#[derive(Debug, Clone)]
pub struct FakeClock {
    start: OffsetDateTime,
    elapsed: Arc<watch::Sender<Duration>>,
    sleepers: Arc<watch::Sender<usize>>,
}

impl FakeClock {
    pub fn at(start: OffsetDateTime) -> Self {
        let elapsed = Arc::new(watch::Sender::new(Duration::ZERO));
        Self { start, elapsed, sleepers: Arc::new(watch::Sender::new(0)) }
    }

    /// Moves the time on and wakes every sleeper whose time has come.
    pub fn advance(&self, duration: Duration) {
        self.elapsed.send_modify(|elapsed| *elapsed += duration);
    }

    /// Returns once at least so many sleeps are under way: what is to be woken by [`FakeClock::advance`] has to
    /// sleep first.
    pub async fn sleepers(&self, count: usize) {
        let mut sleepers = self.sleepers.subscribe();
        sleepers.wait_for(|sleeping| *sleeping >= count).await.expect("the clock holds the sender");
    }
}

impl Default for FakeClock {
    /// Starts in the middle of 2026.
    fn default() -> Self {
        Self::at(time::macros::datetime!(2026-07-01 12:00 UTC))
    }
}

impl Clock for FakeClock {
    fn now(&self) -> OffsetDateTime {
        self.start + self.monotonic()
    }

    fn monotonic(&self) -> Duration {
        *self.elapsed.borrow()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let due = self.monotonic() + duration;
        let clock = self.clone();
        Box::pin(async move {
            let mut elapsed = clock.elapsed.subscribe();
            let _sleeper = Sleeper::new(&clock.sleepers);
            elapsed.wait_for(|elapsed| *elapsed >= due).await.expect("the clock holds the sender");
        })
    }
}

/// Counted from the first poll of a sleep until it ends or is given up.
struct Sleeper<'a>(&'a watch::Sender<usize>);

impl<'a> Sleeper<'a> {
    fn new(sleepers: &'a watch::Sender<usize>) -> Self {
        sleepers.send_modify(|count| *count += 1);
        Self(sleepers)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postrider_engine::clock::Clock as _;

    use super::FakeClock;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn sleepers_wake_when_their_time_has_come_and_not_before() {
        let clock = FakeClock::default();
        let start = clock.now();
        let mut sleep = clock.sleep(3 * SECOND);
        let mut other = clock.sleep(5 * SECOND);
        let moving = clock.clone();
        tokio::select! {
            biased;
            () = &mut sleep => panic!("nobody moved the clock"),
            () = &mut other => panic!("nobody moved the clock"),
            () = moving.sleepers(2) => {}
        }
        moving.advance(3 * SECOND);
        tokio::select! {
            biased;
            () = other => panic!("woken two seconds early"),
            () = sleep => {}
        }
        assert_eq!(clock.now() - start, time::Duration::seconds(3));
        assert_eq!(clock.monotonic(), 3 * SECOND);
    }

    #[tokio::test]
    async fn an_elapsed_sleep_does_not_wait() {
        FakeClock::default().sleep(Duration::ZERO).await;
    }
}
