//! What a tenant has used: minute by minute over the last hour, and how many of its deliveries may be open.

use std::time::Duration;

use time::OffsetDateTime;

use super::{Demand, Excess, Quota, Quotas};

/// Minutes that count besides the running one: together never less than an hour.
const PAST_MINUTES: i32 = 60;

/// What was accepted in a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Minute {
    /// Counted from 1970.
    pub number: i32,
    pub events: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// In order, each once.
    minutes: Vec<Minute>,
    events: u64,
    bytes: u64,
    /// No more deliveries are open than these; `None`: nobody knows.
    open_at_most: Option<u64>,
}

impl Usage {
    /// What counts at `now` of what was written down.
    pub fn at(
        now: OffsetDateTime,
        minutes: impl IntoIterator<Item = Minute>,
        open_at_most: Option<u64>,
    ) -> Self {
        let running = minute_of(now);
        // Minutes to come are of a clock that has been set back since. A few may be; far ones would count for ever.
        let counts = running.saturating_sub(PAST_MINUTES)..=running.saturating_add(PAST_MINUTES);
        let mut usage = Self { open_at_most, ..Self::default() };
        for minute in minutes {
            if counts.contains(&minute.number) {
                usage.add_to(minute);
            }
        }
        usage
    }

    pub fn minutes(&self) -> &[Minute] {
        &self.minutes
    }

    pub const fn open_at_most(&self) -> Option<u64> {
        self.open_at_most
    }

    /// Somebody has counted, or `None`: must count before this is used.
    pub const fn set_open(&mut self, deliveries: Option<u64>) {
        self.open_at_most = deliveries;
    }

    /// An event was accepted.
    pub fn add(&mut self, demand: Demand, now: OffsetDateTime) {
        self.add_to(Minute { number: minute_of(now), events: 1, bytes: demand.bytes });
        self.open_at_most = self.open_at_most.map(|open| open.saturating_add(demand.deliveries));
    }

    /// Whether one more event is within the quotas.
    ///
    /// # Errors
    /// A quota that it is not within: before all others one that it could never be within.
    pub fn check(&self, quotas: &Quotas, demand: Demand, now: OffsetDateTime) -> Result<(), Excess> {
        // Where nobody knows how many are open there is no room; an event that nobody gets needs none.
        let open = self.open_at_most.unwrap_or(u64::MAX);
        let all = [
            (Quota::HourlyEvents, quotas.hourly_events, self.events, 1),
            (Quota::HourlyBytes, quotas.hourly_bytes, self.bytes, demand.bytes),
            (Quota::OpenDeliveries, quotas.open_deliveries, open, demand.deliveries),
        ];
        let mut first = None;
        for (quota, limit, used, needed) in all {
            let Some(limit) = limit else { continue };
            let left = limit.saturating_sub(used);
            if needed <= left {
                continue;
            }
            let excess = Excess { quota, limit, needed, left, retry_after: None };
            if excess.is_for_good() {
                return Err(excess);
            }
            first = first.or(Some(excess));
        }
        let Some(mut excess) = first else { return Ok(()) };
        excess.retry_after = self.room_after(excess.quota, excess.limit - excess.needed, now);
        Err(excess)
    }

    /// How long until no more than `most` is used, if nothing more is accepted; `None`: nobody knows.
    fn room_after(&self, quota: Quota, most: u64, now: OffsetDateTime) -> Option<Duration> {
        let of: fn(&Minute) -> u64 = match quota {
            Quota::HourlyEvents => |minute| minute.events,
            Quota::HourlyBytes => |minute| minute.bytes,
            Quota::OpenDeliveries => return None,
        };
        let mut used: u64 = self.minutes.iter().map(of).sum();
        let leaving = self.minutes.iter().find(|minute| {
            used -= of(minute);
            used <= most
        })?;
        let free_at = (i64::from(leaving.number) + i64::from(PAST_MINUTES) + 1) * 60;
        let wait = OffsetDateTime::from_unix_timestamp(free_at).ok()? - now;
        Some(Duration::try_from(wait).unwrap_or_default())
    }

    fn add_to(&mut self, more: Minute) {
        self.events = self.events.saturating_add(more.events);
        self.bytes = self.bytes.saturating_add(more.bytes);
        match self.minutes.binary_search_by_key(&more.number, |minute| minute.number) {
            Ok(place) => {
                if let Some(minute) = self.minutes.get_mut(place) {
                    minute.events = minute.events.saturating_add(more.events);
                    minute.bytes = minute.bytes.saturating_add(more.bytes);
                }
            }
            Err(place) => self.minutes.insert(place, more),
        }
    }
}

fn minute_of(now: OffsetDateTime) -> i32 {
    i32::try_from(now.unix_timestamp().div_euclid(60)).unwrap_or(i32::MAX)
}
