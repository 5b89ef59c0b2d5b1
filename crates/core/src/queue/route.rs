//! Where a message goes: to those who send, into a wait, or to whoever runs the installation.
//!
//! A wait is a queue of its own for each length, so that what expires first is always at its head: with a length per
//! message an hour at the head would hold up five seconds behind it.

use std::{fmt, time::Duration};

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// To a worker.
    Ready,
    /// To a worker after a wait.
    Retry(Bucket),
    /// Nobody reads it but people: deliveries that ended as dead letters, and messages that nobody can read.
    Dead,
}

/// One length of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bucket {
    wait: Duration,
    name: &'static str,
}

const fn bucket(milliseconds: u64, name: &'static str) -> Bucket {
    Bucket { wait: Duration::from_millis(milliseconds), name }
}

const SHORTEST: Bucket = bucket(250, "postrider.retry.250ms");
const READY: &str = "postrider.ready";
const DEAD: &str = "postrider.dead";

impl Bucket {
    /// Each about four times as long as the one before, so that few turns make up any wait.
    pub const ALL: [Self; 9] = [
        SHORTEST,
        bucket(1_000, "postrider.retry.1s"),
        bucket(5_000, "postrider.retry.5s"),
        bucket(20_000, "postrider.retry.20s"),
        bucket(60_000, "postrider.retry.1m"),
        bucket(5 * 60_000, "postrider.retry.5m"),
        bucket(15 * 60_000, "postrider.retry.15m"),
        bucket(60 * 60_000, "postrider.retry.1h"),
        bucket(4 * 60 * 60_000, "postrider.retry.4h"),
    ];

    pub const fn wait(self) -> Duration {
        self.wait
    }

    /// Where to wait when so much is left: not longer than that, unless by little (a tenth, or the shortest wait).
    /// What is left afterwards is waited for in a next turn.
    pub fn for_wait(left: Duration) -> Self {
        let longest = left + (left / 10).max(SHORTEST.wait);
        Self::ALL.into_iter().rev().find(|bucket| bucket.wait <= longest).unwrap_or(SHORTEST)
    }
}

impl Route {
    /// All there are.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Ready, Self::Dead].into_iter().chain(Bucket::ALL.into_iter().map(Self::Retry))
    }

    /// The queue's name at the broker.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => READY,
            Self::Retry(bucket) => bucket.name,
            Self::Dead => DEAD,
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|route| route.as_str() == name)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_found_by_its_name() {
        for route in Route::all() {
            assert_eq!(Route::from_name(route.as_str()), Some(route));
        }
        assert_eq!(Route::from_name("postrider.retry.3s"), None);
    }

    /// A wait that ends early costs a turn more, one that ends late makes the retry late.
    #[test]
    fn any_wait_ends_after_few_turns_and_hardly_late() {
        for milliseconds in (0..600_000).step_by(37).chain((600_000..40_000_000).step_by(104_729)) {
            let wait = Duration::from_millis(milliseconds);
            let (mut waited, mut turns) = (Duration::ZERO, 0);
            while waited < wait {
                waited += Bucket::for_wait(wait.saturating_sub(waited)).wait();
                turns += 1;
            }
            assert!(turns <= 25, "{wait:?} takes {turns} turns");
            let late = waited.saturating_sub(wait);
            assert!(late <= SHORTEST.wait().max(wait / 10), "{wait:?} ends {late:?} late");
        }
        assert_eq!(Bucket::for_wait(Duration::ZERO), SHORTEST);
        assert_eq!(Bucket::for_wait(Duration::from_secs(5)).wait(), Duration::from_secs(5));
        assert_eq!(
            Bucket::for_wait(Duration::from_secs(7 * 24 * 3600)).wait(),
            Duration::from_secs(4 * 3600)
        );
    }
}
