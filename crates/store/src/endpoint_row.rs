//! The row of an endpoint as delivery needs it, and how it becomes a value whose bounds hold.

use postrider_core::retry;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    routing::{Endpoint, Rate},
    row::{damaged, milliseconds, number, seconds},
};

pub(crate) struct EndpointRow {
    pub(crate) endpoint_id: Uuid,
    pub(crate) tenant_id: Uuid,
    pub(crate) version: i64,
    pub(crate) url: String,
    pub(crate) signing_key_id: Uuid,
    pub(crate) previous_signing_key_id: Option<Uuid>,
    pub(crate) overlap_until: Option<OffsetDateTime>,
    pub(crate) sealed_headers: Option<Vec<u8>>,
    pub(crate) timeout_ms: i32,
    pub(crate) max_in_flight: i32,
    pub(crate) rate_per_second: Option<f64>,
    pub(crate) rate_burst: Option<i32>,
    pub(crate) max_attempts: i32,
    pub(crate) max_age_seconds: i32,
    pub(crate) initial_delay_ms: i32,
    pub(crate) max_delay_ms: i32,
}

impl TryFrom<EndpointRow> for Endpoint {
    type Error = sqlx::Error;

    fn try_from(row: EndpointRow) -> Result<Self, sqlx::Error> {
        let retry = retry::Policy::new(
            number("max_attempts", row.max_attempts)?,
            seconds("max_age_seconds", row.max_age_seconds)?,
            milliseconds("initial_delay_ms", row.initial_delay_ms)?,
            milliseconds("max_delay_ms", row.max_delay_ms)?,
        )
        .map_err(|error| damaged("retry policy", &error))?;
        let rate = match (row.rate_per_second, row.rate_burst) {
            (Some(per_second), Some(burst)) => Some(Rate {
                per_second,
                burst: number("rate_burst", number::<u32, _>("rate_burst", burst)?)?,
            }),
            _ => None,
        };
        Ok(Self {
            tenant_id: row.tenant_id.into(),
            endpoint_id: row.endpoint_id.into(),
            version: row.version,
            url: row.url,
            signing_key_id: row.signing_key_id.into(),
            overlap: row.previous_signing_key_id.map(Into::into).zip(row.overlap_until),
            sealed_headers: row.sealed_headers,
            timeout: milliseconds("timeout_ms", row.timeout_ms)?,
            max_in_flight: number("max_in_flight", number::<u16, _>("max_in_flight", row.max_in_flight)?)?,
            rate,
            retry,
        })
    }
}
