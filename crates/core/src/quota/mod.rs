//! What a tenant may do: how fast it may publish, how much in an hour, and how much of it may be open at a time.
//!
//! Invariant: what was used is never counted too low, so a quota is never exceeded; it may be counted too high for a
//! minute, or until open deliveries are counted anew.

mod admission;
mod limits;
mod usage;

use std::time::Duration;

pub use self::{
    admission::{Candidate, Verdict, decide},
    limits::{Limits, Settings},
    usage::{Minute, Usage},
};

/// Most of each; `None`: any number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Events accepted in a rolling hour.
    pub hourly_events: Option<u64>,
    /// Bytes of their bodies, as received.
    pub hourly_bytes: Option<u64>,
    /// Deliveries that have not ended: pending, in flight, scheduled or held.
    pub open_deliveries: Option<u64>,
}

impl Quotas {
    /// Whether there is any.
    pub const fn is_any(&self) -> bool {
        self.hourly_events.is_some() || self.hourly_bytes.is_some() || self.open_deliveries.is_some()
    }
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    HourlyEvents,
    HourlyBytes,
    OpenDeliveries,
}

impl Quota {
    /// As the API spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HourlyEvents => "hourlyEvents",
            Self::HourlyBytes => "hourlyBytes",
            Self::OpenDeliveries => "openDeliveries",
        }
    }
}

/// What an event uses up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    pub bytes: u64,
    pub deliveries: u64,
}

/// Why an event is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    pub quota: Quota,
    pub limit: u64,
    /// What the event needs, and what is left, which is less.
    pub needed: u64,
    pub left: u64,
    /// When enough of the hour will have passed; `None` where time alone does not help.
    pub retry_after: Option<Duration>,
}

impl Excess {
    /// Whether the event alone needs more than the quota, so that trying again never helps.
    pub const fn is_for_good(&self) -> bool {
        self.needed > self.limit
    }
}

#[cfg(test)]
mod tests;
