//! A database that is away, in few words: every request is refused then, and a line for each would bury everything else.
//!
//! Invariant: the first refusal has its line at once; while more follow, there is one line in [`INTERVAL`] at most, and
//! none of them is left uncounted.

use std::sync::{Mutex, PoisonError};

use time::{Duration, OffsetDateTime};

/// Least time between two lines.
const INTERVAL: Duration = Duration::seconds(10);

/// Says in an answer's extensions that the database refused it, and why.
#[derive(Debug, Clone)]
pub(crate) struct Away(pub(crate) String);

/// What was logged of refusals so far.
#[derive(Debug, Default)]
pub(crate) struct Outage(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    last_line: Option<OffsetDateTime>,
    /// Refusals since then.
    silent: u64,
}

impl Outage {
    /// Logs a refusal, or counts it for a later line.
    pub(crate) fn report(&self, now: OffsetDateTime, Away(error): &Away) {
        if let Some(requests) = self.due(now) {
            tracing::warn!(error, requests, "the database did not answer requests");
        }
    }

    /// How many refusals a line would stand for, where one is due.
    fn due(&self, now: OffsetDateTime) -> Option<u64> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.silent += 1;
        // A clock that was set back does not silence anything.
        let is_early = seen.last_line.is_some_and(|last| (last..last + INTERVAL).contains(&now));
        if is_early {
            return None;
        }
        seen.last_line = Some(now);
        Some(std::mem::take(&mut seen.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_is_told_at_once_and_the_others_by_their_number() {
        let outage = Outage::default();
        for (second, expected) in [
            (0, Some(1)),
            (0, None),
            (9, None),
            (10, Some(3)),
            (19, None),
            (3_600, Some(2)),
            (3_601, None),
            (5, Some(2)),
        ] {
            let now = OffsetDateTime::UNIX_EPOCH + Duration::seconds(second);
            assert_eq!(outage.due(now), expected, "{second}");
        }
    }
}
