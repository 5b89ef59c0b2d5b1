//! How requests to an endpoint are made: what its owner may change at any time.

use std::{fmt, num::NonZeroU16, ops::RangeInclusive, time::Duration};

pub use postrider_core::bucket::Rate;
use postrider_core::{id::CredentialId, method::Method, pacing, retry::Policy, success_codes::SuccessCodes};

/// Everything about an endpoint that its owner chooses, apart from its name, its keys and whether it is enabled.
#[derive(Clone, PartialEq)]
pub struct Settings {
    /// As checked by `core::destination`, without its query.
    pub url: String,
    /// The URL's query, sealed for the row of this endpoint. Only the registry may allow one.
    pub sealed_query: Option<Vec<u8>>,
    pub method: Method,
    /// Which answers are a success.
    pub success_codes: SuccessCodes,
    /// The tenant's credential that requests carry.
    pub credential_id: Option<CredentialId>,
    /// Custom request headers, sealed for the row of this endpoint.
    pub sealed_headers: Option<Vec<u8>>,
    /// Longest time for one request, from looking up the name to the head of the answer, whose status decides.
    pub timeout: Duration,
    /// Most requests at a time.
    pub max_in_flight: NonZeroU16,
    pub rate: Option<Rate>,
    pub retry: Policy,
}

impl Settings {
    /// Bounds of [`Settings::timeout`].
    pub const TIMEOUT_BOUNDS: RangeInclusive<Duration> = pacing::TIMEOUT_BOUNDS;
    pub const DEFAULT_TIMEOUT: Duration = pacing::DEFAULT_TIMEOUT;
    /// Bound of [`Settings::max_in_flight`].
    pub const MAX_IN_FLIGHT_BOUND: NonZeroU16 = pacing::MAX_IN_FLIGHT_BOUND;
    pub const DEFAULT_MAX_IN_FLIGHT: NonZeroU16 = pacing::DEFAULT_MAX_IN_FLIGHT;

    /// An endpoint whose owner chose nothing but its URL.
    pub const fn new(url: String) -> Self {
        Self {
            url,
            sealed_query: None,
            method: Method::Post,
            success_codes: SuccessCodes::DEFAULT,
            credential_id: None,
            sealed_headers: None,
            timeout: Self::DEFAULT_TIMEOUT,
            max_in_flight: Self::DEFAULT_MAX_IN_FLIGHT,
            rate: None,
            retry: Policy::DEFAULT,
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Settings")
            .field("method", &self.method)
            .field("success_codes", &self.success_codes)
            .field("timeout", &self.timeout)
            .field("max_in_flight", &self.max_in_flight)
            .field("rate", &self.rate)
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}
