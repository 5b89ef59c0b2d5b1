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
    /// The first quota that it is not within.
    pub fn check(&self, quotas: &Quotas, demand: Demand, now: OffsetDateTime) -> Result<(), Excess> {
        let hourly = [
            (Quota::HourlyEvents, quotas.hourly_events, self.events, 1),
            (Quota::HourlyBytes, quotas.hourly_bytes, self.bytes, demand.bytes),
        ];
        for (quota, limit, used, needed) in hourly {
            let Some(limit) = limit else { continue };
            if used.saturating_add(needed) > limit {
                let retry_after = self.room_after(quota, limit.checked_sub(needed), now);
                return Err(Excess { quota, limit, left: limit.saturating_sub(used), retry_after });
            }
        }
        let Some(limit) = quotas.open_deliveries else { return Ok(()) };
        // Where nobody knows how many are open there is no room; an event that nobody gets needs none.
        let left = self.open_at_most.map_or(0, |open| limit.saturating_sub(open));
        if demand.deliveries > left {
            return Err(Excess { quota: Quota::OpenDeliveries, limit, left, retry_after: None });
        }
        Ok(())
    }

    /// How long until no more than `most` is used, if nothing more is accepted; `None`: never.
    fn room_after(&self, quota: Quota, most: Option<u64>, now: OffsetDateTime) -> Option<Duration> {
        let of = |minute: &Minute| match quota {
            Quota::HourlyEvents => minute.events,
            Quota::HourlyBytes => minute.bytes,
            Quota::OpenDeliveries => 0,
        };
        let mut used: u64 = self.minutes.iter().map(of).sum();
        let most = most?;
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
