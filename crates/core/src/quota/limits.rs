//! A tenant's limits: what was set for it, over what the installation has for everyone.

use std::num::NonZeroU32;

use super::Quotas;
use crate::bucket::Rate;

/// What was set, by number. `None`: not set; zero: without a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Settings {
    /// Events per second.
    pub rate: Option<f64>,
    /// Events at once after a pause; zero: what the rate gives in a second.
    pub burst: Option<u32>,
    pub hourly_events: Option<u64>,
    pub hourly_bytes: Option<u64>,
    pub open_deliveries: Option<u64>,
}

/// What holds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits {
    /// How fast the tenant may publish, all its applications together.
    pub rate: Option<Rate>,
    pub quotas: Quotas,
}

impl Settings {
    /// Slowest rate that is not zero.
    pub const LEAST_RATE: f64 = 0.01;
    pub const RATE_BOUND: f64 = 1_000_000.0;
    pub const BURST_BOUND: u32 = 1_000_000;
    /// Largest quota of any kind: what every JSON reader takes for a whole number.
    pub const QUOTA_BOUND: u64 = (1 << 53) - 1;

    /// What holds for a tenant where these are its own settings.
    pub fn over(&self, defaults: &Self) -> Limits {
        let given = |own: Option<u64>, default: Option<u64>| own.or(default).filter(|limit| *limit > 0);
        let per_second = self.rate.or(defaults.rate).filter(|rate| *rate > 0.0);
        let burst = self.burst.or(defaults.burst).and_then(NonZeroU32::new);
        Limits {
            rate: per_second.map(|per_second| Rate {
                per_second,
                burst: burst.unwrap_or_else(|| Rate::a_second_of(per_second)),
            }),
            quotas: Quotas {
                hourly_events: given(self.hourly_events, defaults.hourly_events),
                hourly_bytes: given(self.hourly_bytes, defaults.hourly_bytes),
                open_deliveries: given(self.open_deliveries, defaults.open_deliveries),
            },
        }
    }
}
