//! A tenant's limits as they are shown and changed.

use postrider_core::quota::{self, Limits, Settings};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{change::Change, problem::Problem};

/// Quotas; `null` where there is none of the tenant's own.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TenantQuotas)]
pub(super) struct Quotas {
    /// Events accepted in a rolling hour.
    hourly_events: Option<u64>,
    /// Bytes of their bodies.
    hourly_bytes: Option<u64>,
    /// Deliveries that have not ended.
    open_deliveries: Option<u64>,
}

/// The limits that hold; `null` where there is none.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EffectiveLimits)]
pub(super) struct Effective {
    /// Events per second.
    rate: Option<f64>,
    /// Events at once after a pause.
    burst: Option<u32>,
    quotas: Quotas,
}

/// Quotas to change. What is left out stays as it is; `null` brings one back to its default, and 0 is no quota.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = TenantQuotasPatch)]
pub(super) struct QuotaChanges {
    /// Events accepted in a rolling hour.
    #[serde(default)]
    #[schema(value_type = Option<u64>, maximum = 9_007_199_254_740_991_u64)]
    hourly_events: Change<u64>,
    /// Bytes of their bodies.
    #[serde(default)]
    #[schema(value_type = Option<u64>, maximum = 9_007_199_254_740_991_u64)]
    hourly_bytes: Change<u64>,
    /// Deliveries that have not ended.
    #[serde(default)]
    #[schema(value_type = Option<u64>, maximum = 9_007_199_254_740_991_u64)]
    open_deliveries: Change<u64>,
}

impl Quotas {
    pub(super) fn own(settings: &Settings) -> Self {
        Self {
            hourly_events: settings.hourly_events,
            hourly_bytes: settings.hourly_bytes,
            open_deliveries: settings.open_deliveries,
        }
    }
}

impl From<Limits> for Effective {
    fn from(Limits { rate, quotas }: Limits) -> Self {
        let quota::Quotas { hourly_events, hourly_bytes, open_deliveries } = quotas;
        Self {
            rate: rate.map(|rate| rate.per_second),
            burst: rate.map(|rate| rate.burst.get()),
            quotas: Quotas { hourly_events, hourly_bytes, open_deliveries },
        }
    }
}

impl QuotaChanges {
    /// Every quota back to its default.
    pub(super) const ALL_REMOVED: Self =
        Self { hourly_events: Change::Remove, hourly_bytes: Change::Remove, open_deliveries: Change::Remove };

    /// # Errors
    /// `422` naming the quota that is out of bounds.
    pub(super) fn apply(&self, settings: &mut Settings) -> Result<(), Problem> {
        for (field, change, setting) in [
            ("quotas.hourlyEvents", self.hourly_events, &mut settings.hourly_events),
            ("quotas.hourlyBytes", self.hourly_bytes, &mut settings.hourly_bytes),
            ("quotas.openDeliveries", self.open_deliveries, &mut settings.open_deliveries),
        ] {
            if matches!(change, Change::Set(value) if value > Settings::QUOTA_BOUND) {
                return Err(Problem::invalid_field(
                    field,
                    format!("takes at most {}", Settings::QUOTA_BOUND),
                ));
            }
            *setting = change.map(Some).apply(*setting, None);
        }
        Ok(())
    }
}

/// # Errors
/// `422` naming `rate` or `burst`.
pub(super) fn apply_rate(
    rate: Change<f64>,
    burst: Change<u32>,
    settings: &mut Settings,
) -> Result<(), Problem> {
    let (least, most) = (Settings::LEAST_RATE, Settings::RATE_BOUND);
    if matches!(rate, Change::Set(value) if value != 0.0 && !(least..=most).contains(&value)) {
        let detail = format!("takes events per second, from {least} to {most}, or 0 for no limit");
        return Err(Problem::invalid_field("rate", detail));
    }
    if matches!(burst, Change::Set(value) if value > Settings::BURST_BOUND) {
        return Err(Problem::invalid_field("burst", format!("takes at most {}", Settings::BURST_BOUND)));
    }
    settings.rate = rate.map(Some).apply(settings.rate, None);
    settings.burst = burst.map(Some).apply(settings.burst, None);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_kept_set_and_brought_back_to_their_default() {
        let before =
            Settings { rate: Some(5.0), burst: Some(7), hourly_events: Some(9), ..Settings::default() };
        let check = |rate, burst, quotas: &str, expected: Result<Settings, &str>| {
            let quotas: QuotaChanges = serde_json::from_str(quotas).expect(quotas);
            let mut settings = before;
            let applied = apply_rate(rate, burst, &mut settings).and_then(|()| quotas.apply(&mut settings));
            match (applied, expected) {
                (Ok(()), Ok(expected)) => assert_eq!(settings, expected),
                (Err(problem), Err(field)) => assert!(format!("{problem:?}").contains(&format!("`{field}`"))),
                (applied, expected) => panic!("{applied:?} instead of {expected:?}"),
            }
        };
        check(Change::Keep, Change::Keep, "{}", Ok(before));
        check(
            Change::Remove,
            Change::Set(0),
            r#"{"hourlyEvents":null}"#,
            Ok(Settings { burst: Some(0), ..Settings::default() }),
        );
        let bytes = Settings { rate: Some(0.0), hourly_bytes: Some(0), ..before };
        check(Change::Set(0.0), Change::Keep, r#"{"hourlyBytes":0}"#, Ok(bytes));
        for rate in [-1.0, 0.001, 1_000_001.0, f64::NAN] {
            check(Change::Set(rate), Change::Keep, "{}", Err("rate"));
        }
        check(Change::Keep, Change::Set(1_000_001), "{}", Err("burst"));
        let large = r#"{"openDeliveries":9007199254740992}"#;
        check(Change::Keep, Change::Keep, large, Err("quotas.openDeliveries"));
    }
}
