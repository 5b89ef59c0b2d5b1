//! How requests to an endpoint are made: what its owner may change at any time.

use std::{
    fmt,
    num::{NonZeroU16, NonZeroU32},
    time::Duration,
};

use postrider_core::retry::Policy;

use crate::row::number;

/// Everything about an endpoint that its owner chooses, apart from its name, its keys and whether it is enabled.
#[derive(Clone, PartialEq)]
pub struct Settings {
    /// As checked by `core::destination`. It may hold a query, which is not to be shown or logged.
    pub url: String,
    /// Custom request headers, sealed for the row of this endpoint.
    pub sealed_headers: Option<Vec<u8>>,
    /// Longest time for one request, from connecting to the end of the answer.
    pub timeout: Duration,
    /// Most requests at a time.
    pub max_in_flight: NonZeroU16,
    pub rate: Option<Rate>,
    pub retry: Policy,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    /// Requests that may be made at once after a pause.
    pub burst: NonZeroU32,
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Settings")
            .field("timeout", &self.timeout)
            .field("max_in_flight", &self.max_in_flight)
            .field("rate", &self.rate)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}

/// Settings as they stand in a row.
pub(super) struct Columns<'a> {
    pub url: &'a str,
    pub sealed_headers: Option<&'a [u8]>,
    pub timeout_ms: i32,
    pub max_in_flight: i32,
    pub rate_per_second: Option<f64>,
    pub rate_burst: Option<i32>,
    pub max_attempts: i32,
    pub max_age_seconds: i32,
    pub initial_delay_ms: i32,
    pub max_delay_ms: i32,
}

impl Settings {
    pub(super) fn columns(&self) -> Result<Columns<'_>, sqlx::Error> {
        Ok(Columns {
            url: &self.url,
            sealed_headers: self.sealed_headers.as_deref(),
            timeout_ms: number("timeout_ms", self.timeout.as_millis())?,
            max_in_flight: self.max_in_flight.get().into(),
            rate_per_second: self.rate.map(|rate| rate.per_second),
            rate_burst: self.rate.map(|rate| number("rate_burst", rate.burst.get())).transpose()?,
            max_attempts: self.retry.max_attempts().into(),
            max_age_seconds: number("max_age_seconds", self.retry.max_age().as_secs())?,
            initial_delay_ms: number("initial_delay_ms", self.retry.initial_delay().as_millis())?,
            max_delay_ms: number("max_delay_ms", self.retry.max_delay().as_millis())?,
        })
    }
}
