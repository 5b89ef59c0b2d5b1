//! A range of acceptance times, and the range of ids it must lie in: ids begin with the millisecond they were made in,
//! so a list over a time range reads that part of the id's index and not the history around it.

use time::{Duration, OffsetDateTime};
use uuid::Uuid;

/// How far an id's own time may differ from the time of acceptance: ids are made by the accepting process, times by
/// the database, and their clocks may differ. Larger would only make narrow ranges read more.
const CLOCK_MARGIN: Duration = Duration::minutes(10);

/// The 48 bits of a UUIDv7 that hold milliseconds since the Unix epoch (RFC 9562, section 5.7).
const MAX_MILLISECONDS: u64 = (1 << 48) - 1;
const BITS_BELOW_THE_TIME: u32 = 80;
const BELOW_THE_TIME: u128 = (1 << BITS_BELOW_THE_TIME) - 1;

#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeRange {
    pub(crate) since: Option<OffsetDateTime>,
    pub(crate) until: Option<OffsetDateTime>,
}

impl TimeRange {
    /// The first and the last id that rows of this range can have, in a list that goes on below `before`. Bounds, not
    /// conditions: a plan made without knowing the values still starts its scan at them.
    pub(crate) fn ids_below(self, before: Option<Uuid>) -> (Uuid, Uuid) {
        let first = self.since.map_or(0, |since| milliseconds(since.saturating_sub(CLOCK_MARGIN)));
        let last =
            self.until.map_or(MAX_MILLISECONDS, |until| milliseconds(until.saturating_add(CLOCK_MARGIN)));
        let last = u128::from(last) << BITS_BELOW_THE_TIME | BELOW_THE_TIME;
        let last = before.map_or(last, |before| last.min(before.as_u128().saturating_sub(1)));
        (Uuid::from_u128(u128::from(first) << BITS_BELOW_THE_TIME), Uuid::from_u128(last))
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

    fn id_made(at: OffsetDateTime) -> Uuid {
        let seconds = u64::try_from(at.unix_timestamp()).expect("after 1970");
        Uuid::new_v7(uuid::Timestamp::from_unix_time(seconds, 0, 0, 0))
    }

    #[test]
    fn ids_made_within_the_margin_lie_in_the_range() {
        let noon = datetime!(2026-03-01 12:00:00 UTC);
        let (first, last) = TimeRange { since: Some(noon), until: Some(noon) }.ids_below(None);
        for (offset_seconds, inside) in [(0, true), (600, true), (-600, true), (601, false), (-601, false)] {
            let id = id_made(noon + Duration::seconds(offset_seconds));
            assert_eq!((first..=last).contains(&id), inside, "{offset_seconds}");
        }
    }

    #[test]
    fn a_list_goes_on_right_below_its_cursor() {
        let noon = datetime!(2026-03-01 12:00:00 UTC);
        let cursor = id_made(noon);
        let (_, last) = TimeRange { since: None, until: None }.ids_below(Some(cursor));
        assert_eq!(last.as_u128(), cursor.as_u128() - 1);
        let (_, last) =
            TimeRange { since: None, until: Some(noon - Duration::hours(1)) }.ids_below(Some(cursor));
        assert!(last < id_made(noon - Duration::minutes(49)), "the earlier bound holds");
        let (first, last) = TimeRange { since: None, until: None }.ids_below(Some(Uuid::nil()));
        assert_eq!((first, last), (Uuid::nil(), Uuid::nil()));
    }

    #[test]
    fn an_open_range_holds_every_id() {
        assert_eq!(TimeRange { since: None, until: None }.ids_below(None), (Uuid::nil(), Uuid::max()));
    }

    #[test]
    fn times_beyond_what_an_id_can_hold_are_clamped() {
        let (since, until) = (datetime!(-9999-01-01 0:00 UTC), datetime!(9999-12-31 23:59 UTC));
        let (first, last) = TimeRange { since: Some(since), until: Some(until) }.ids_below(None);
        assert_eq!(first, Uuid::nil());
        assert!(last > id_made(datetime!(2500-01-01 0:00 UTC)));
    }
}
