//! What tenants may do unless something else was set for them, what this process takes on at once, and how much may wait.
//! Everything but the last is off unless it is set.

use std::num::{NonZeroU32, NonZeroU64};

use postrider_core::{overload, quota};

use super::{
    setting::{self, Setting},
    source::{Recorded, Source, number},
};

/// More requests than one process could have in hand.
const REQUESTS_BOUND: u32 = 1_000_000;
/// Deliveries that may wait to be sent: a queue of less than a gigabyte, which a small installation clears in minutes.
const BACKLOG_DEFAULT: u64 = 1_000_000;
/// What waits is counted again and again, a second for every few millions: of more the count would never come to its end,
/// and nobody would be refused.
const BACKLOG_BOUND: u64 = 20_000_000;

#[derive(Debug)]
pub(crate) struct Limits {
    /// Of tenants that have none of their own. Zero, too, is no limit.
    pub(crate) tenants: quota::Settings,
    /// Requests that may be worked on at once; `None`: any number.
    pub(crate) max_requests_in_flight: Option<NonZeroU32>,
    /// Deliveries that may wait to be sent before publishers are refused; `None`: any number.
    pub(crate) backlog: Option<overload::Limit>,
}

impl Limits {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let rate = source.optional(&setting::TENANT_RATE, rate);
        let burst =
            source.optional(&setting::TENANT_BURST, |text| number(text, &(0..=quota::Settings::BURST_BOUND)));
        let mut quota = |setting: &Setting| {
            source.optional(setting, |text| number(text, &(0..=quota::Settings::QUOTA_BOUND)))
        };
        let hourly_events = quota(&setting::TENANT_HOURLY_EVENT_LIMIT);
        let hourly_bytes = quota(&setting::TENANT_HOURLY_BYTE_LIMIT);
        let open_deliveries = quota(&setting::TENANT_PENDING_LIMIT);
        let in_flight =
            source.or_default(&setting::MAX_INFLIGHT_REQUESTS, 0, |text| number(text, &(0..=REQUESTS_BOUND)));
        let backlog = source
            .or_default(&setting::MAX_BACKLOG, BACKLOG_DEFAULT, |text| number(text, &(0..=BACKLOG_BOUND)));
        Ok(Self {
            tenants: quota::Settings {
                rate: rate?,
                burst: burst?,
                hourly_events: hourly_events?,
                hourly_bytes: hourly_bytes?,
                open_deliveries: open_deliveries?,
            },
            max_requests_in_flight: NonZeroU32::new(in_flight?),
            backlog: NonZeroU64::new(backlog?).map(overload::Limit::new),
        })
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let (least, most) = (quota::Settings::LEAST_RATE, quota::Settings::RATE_BOUND);
    let parsed = text.parse::<f64>().ok();
    let rate = parsed.filter(|rate| *rate == 0.0 || (least..=most).contains(rate));
    rate.ok_or_else(|| format!("takes events per second, from {least} to {most}, or 0 for no limit"))
}
