//! A range of acceptance times, and the range of ids it must lie in: ids begin with the millisecond they were made in,
//! so a list over a time range reads that part of the id's index and not the history around it.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

/// How far an id's own time may differ from the time of acceptance: ids are made by the accepting process, times by
/// the database, and their clocks may differ. Larger would only make narrow ranges read more.
const CLOCK_MARGIN: Duration = Duration::from_secs(10 * 60);

/// The 48 bits of a UUIDv7 that hold milliseconds since the Unix epoch (RFC 9562, section 5.7).
const MAX_MILLISECONDS: u64 = (1 << 48) - 1;
const BITS_BELOW_THE_TIME: u32 = 80;

#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeRange {
    pub(crate) since: Option<OffsetDateTime>,
    pub(crate) until: Option<OffsetDateTime>,
}

impl TimeRange {
    pub(crate) const fn new(since: Option<OffsetDateTime>, until: Option<OffsetDateTime>) -> Self {
        Self { since, until }
    }

    /// No id of the range is smaller.
    pub(crate) fn first_id(self) -> Uuid {
        let first = self
            .since
            .map(|since| milliseconds(since.saturating_sub(CLOCK_MARGIN.try_into().unwrap_or_default())));
        Uuid::from_u128(u128::from(first.unwrap_or(0)) << BITS_BELOW_THE_TIME)
    }

    /// No id of the range is larger.
    pub(crate) fn last_id(self) -> Uuid {
        let last = self
            .until
            .map(|until| milliseconds(until.saturating_add(CLOCK_MARGIN.try_into().unwrap_or_default())));
        let below = (1_u128 << BITS_BELOW_THE_TIME) - 1;
        Uuid::from_u128(u128::from(last.unwrap_or(MAX_MILLISECONDS)) << BITS_BELOW_THE_TIME | below)
    }
}

fn milliseconds(time: OffsetDateTime) -> u64 {
    let milliseconds = time.unix_timestamp_nanos().max(0) / 1_000_000;
    u64::try_from(milliseconds).unwrap_or(MAX_MILLISECONDS).min(MAX_MILLISECONDS)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn ids_made_within_the_margin_lie_in_the_range() {
        let noon = datetime!(2026-03-01 12:00:00 UTC);
        let range = TimeRange::new(Some(noon), Some(noon));
        for (offset_seconds, inside) in [(0, true), (600, true), (-600, true), (601, false), (-601, false)] {
            let made = noon + time::Duration::seconds(offset_seconds);
            let id = Uuid::new_v7(uuid::Timestamp::from_unix_time(
                u64::try_from(made.unix_timestamp()).expect("after 1970"),
                0,
                0,
                0,
            ));
            assert_eq!((range.first_id()..=range.last_id()).contains(&id), inside, "{offset_seconds}");
        }
    }

    #[test]
    fn an_open_range_holds_every_id() {
        let range = TimeRange::new(None, None);
        assert_eq!((range.first_id(), range.last_id()), (Uuid::nil(), Uuid::max()));
    }

    #[test]
    fn times_beyond_what_an_id_can_hold_are_clamped() {
        let range =
            TimeRange::new(Some(datetime!(-9999-01-01 0:00 UTC)), Some(datetime!(9999-12-31 23:59 UTC)));
        assert_eq!(range.first_id(), Uuid::nil());
        assert!(range.last_id() > range.first_id());
    }
}
