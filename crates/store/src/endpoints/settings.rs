//! How requests to an endpoint are made: what its owner may change at any time.

use std::{
    fmt,
    num::{NonZeroU16, NonZeroU32},
    ops::RangeInclusive,
    time::Duration,
};

use postrider_core::{id::CredentialId, method::Method, retry::Policy, success_codes::SuccessCodes};

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

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    /// Requests that may be made at once after a pause.
    pub burst: NonZeroU32,
}

impl Settings {
    /// Bounds of [`Settings::timeout`]: long enough for a slow receiver, short enough to end within a lease.
    pub const TIMEOUT_BOUNDS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);
    /// Most requests at a time that an endpoint may allow.
    pub const MAX_IN_FLIGHT_BOUND: NonZeroU16 = NonZeroU16::new(1_000).expect("not zero");
    pub const DEFAULT_MAX_IN_FLIGHT: NonZeroU16 = NonZeroU16::new(32).expect("not zero");

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

impl Rate {
    /// Bounds of [`Rate::per_second`]: from one request in a hundred seconds up.
    pub const PER_SECOND_BOUNDS: RangeInclusive<f64> = 0.01..=10_000.0;
    /// Largest [`Rate::burst`].
    pub const BURST_BOUND: NonZeroU32 = NonZeroU32::new(10_000).expect("not zero");
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
