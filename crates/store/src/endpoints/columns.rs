//! Settings as they stand in an endpoint's row. Whoever reads or writes them does it through here.

use postrider_core::retry::Policy;
use uuid::Uuid;

use super::{Rate, Settings};
use crate::row::{damaged, milliseconds, number, seconds, text};

/// What stands in the row as it is.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) url: String,
    pub(crate) sealed_query: Option<Vec<u8>>,
    pub(crate) sealed_headers: Option<Vec<u8>>,
}

/// The settings' other columns.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    pub(crate) method: String,
    pub(crate) success_codes: String,
    pub(crate) credential_id: Option<Uuid>,
    pub(crate) timeout_ms: i32,
    pub(crate) max_in_flight: i32,
    pub(crate) rate_per_second: Option<f64>,
    pub(crate) rate_burst: Option<i32>,
    pub(crate) retry: PolicyColumns,
}

/// The retry policy's columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PolicyColumns {
    pub(crate) max_attempts: i32,
    pub(crate) max_age_seconds: i32,
    pub(crate) initial_delay_ms: i32,
    pub(crate) max_delay_ms: i32,
}

impl Columns {
    pub(super) fn of(settings: &Settings) -> Result<Self, sqlx::Error> {
        Ok(Self {
            method: settings.method.as_str().to_owned(),
            success_codes: settings.success_codes.to_string(),
            credential_id: settings.credential_id.map(Into::into),
            timeout_ms: number("timeout_ms", settings.timeout.as_millis())?,
            max_in_flight: settings.max_in_flight.get().into(),
            rate_per_second: settings.rate.map(|rate| rate.per_second),
            rate_burst: settings.rate.map(|rate| number("rate_burst", rate.burst.get())).transpose()?,
            retry: PolicyColumns::of(&settings.retry)?,
        })
    }

    pub(crate) fn settings(self, plain: Plain) -> Result<Settings, sqlx::Error> {
        let Plain { url, sealed_query, sealed_headers } = plain;
        let max_in_flight: u16 = number("max_in_flight", self.max_in_flight)?;
        let rate = self.rate_per_second.zip(self.rate_burst).map(|(per_second, burst)| {
            let burst: u32 = number("rate_burst", burst)?;
            Ok::<_, sqlx::Error>(Rate { per_second, burst: number("rate_burst", burst)? })
        });
        Ok(Settings {
            url,
            sealed_query,
            method: text("method", &self.method)?,
            success_codes: text("success_codes", &self.success_codes)?,
            credential_id: self.credential_id.map(Into::into),
            sealed_headers,
            timeout: milliseconds("timeout_ms", self.timeout_ms)?,
            max_in_flight: number("max_in_flight", max_in_flight)?,
            rate: rate.transpose()?,
            retry: self.retry.policy()?,
        })
    }
}

impl PolicyColumns {
    fn of(policy: &Policy) -> Result<Self, sqlx::Error> {
        Ok(Self {
            max_attempts: policy.max_attempts().into(),
            max_age_seconds: number("max_age_seconds", policy.max_age().as_secs())?,
            initial_delay_ms: number("initial_delay_ms", policy.initial_delay().as_millis())?,
            max_delay_ms: number("max_delay_ms", policy.max_delay().as_millis())?,
        })
    }

    pub(crate) fn policy(self) -> Result<Policy, sqlx::Error> {
        Policy::new(
            number("max_attempts", self.max_attempts)?,
            seconds("max_age_seconds", self.max_age_seconds)?,
            milliseconds("initial_delay_ms", self.initial_delay_ms)?,
            milliseconds("max_delay_ms", self.max_delay_ms)?,
        )
        .map_err(|error| damaged("retry policy", &error))
    }
}
