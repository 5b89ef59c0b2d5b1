//! The numbers an endpoint's owner may set, each within bounds. As members of a merge patch they are kept when left
//! out and go back to their default when `null`.

use std::{
    num::{NonZeroU16, NonZeroU32},
    time::Duration,
};

use postrider_core::retry::{self, Policy};
use postrider_store::endpoints::{Rate, Settings};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::{change::Change, problem::Problem};

/// When to try again, and when to give up.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = RetryPolicyPatch)]
pub(crate) struct RetryChanges {
    /// Most attempts, 25 unless given.
    #[serde(default)]
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 100)]
    max_attempts: Change<u16>,
    /// Longest time from acceptance to the last attempt, in seconds; 24 hours unless given.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 604_800)]
    max_age_seconds: Change<u32>,
    /// Delay before the second attempt, in milliseconds; doubles with each one. 5 seconds unless given.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 86_400_000)]
    initial_delay_ms: Change<u32>,
    /// Longest delay between attempts, in milliseconds; 2 hours unless given.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 86_400_000)]
    max_delay_ms: Change<u32>,
}

/// How many requests may be made in a time.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = RateLimitPatch)]
pub(crate) struct RateChanges {
    /// Requests per second.
    #[serde(default)]
    #[schema(value_type = Option<f64>, minimum = 0.01, maximum = 10_000)]
    per_second: Change<f64>,
    /// Requests that may be made at once after a pause; as many as a second allows unless given.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    burst: Change<u32>,
}

impl RetryChanges {
    pub(super) fn apply(&self, current: Policy) -> Result<Policy, Problem> {
        let default = Policy::DEFAULT;
        Policy::new(
            self.max_attempts.apply(current.max_attempts(), default.max_attempts()),
            seconds(self.max_age_seconds).apply(current.max_age(), default.max_age()),
            milliseconds(self.initial_delay_ms).apply(current.initial_delay(), default.initial_delay()),
            milliseconds(self.max_delay_ms).apply(current.max_delay(), default.max_delay()),
        )
        .map_err(|error| {
            let field = match error {
                retry::Error::Attempts => "retry.maxAttempts",
                retry::Error::Age => "retry.maxAgeSeconds",
                retry::Error::InitialDelay => "retry.initialDelayMs",
                retry::Error::MaxDelay => "retry.maxDelayMs",
            };
            Problem::invalid_field(field, error.to_string())
        })
    }
}

impl RateChanges {
    pub(super) fn apply(&self, current: Option<Rate>) -> Result<Rate, Problem> {
        let bounds = Rate::PER_SECOND_BOUNDS;
        let per_second = match (self.per_second, current) {
            (Change::Set(value), _) => Some(value),
            (Change::Keep, Some(current)) => Some(current.per_second),
            (Change::Keep, None) | (Change::Remove, _) => None,
        };
        let per_second = per_second
            .filter(|value| bounds.contains(value))
            .ok_or_else(|| out_of_bounds("rateLimit.perSecond", bounds.start(), bounds.end()))?;
        let burst = match (self.burst, current) {
            (Change::Set(value), _) => NonZeroU32::new(value),
            (Change::Keep, Some(current)) => Some(current.burst),
            (Change::Keep, None) | (Change::Remove, _) => Some(Rate::a_second_of(per_second)),
        };
        let burst = burst
            .filter(|value| *value <= Rate::BURST_BOUND)
            .ok_or_else(|| out_of_bounds("rateLimit.burst", &1, &Rate::BURST_BOUND))?;
        Ok(Rate { per_second, burst })
    }
}

/// # Errors
/// `422` naming the field `timeoutMs`.
pub(super) fn timeout(change: Change<u32>, current: Duration) -> Result<Duration, Problem> {
    let value = milliseconds(change).apply(current, Settings::DEFAULT_TIMEOUT);
    let bounds = Settings::TIMEOUT_BOUNDS;
    if bounds.contains(&value) {
        return Ok(value);
    }
    Err(out_of_bounds("timeoutMs", &bounds.start().as_millis(), &bounds.end().as_millis()))
}

/// # Errors
/// `422` naming the field `maxInFlight`.
pub(super) fn max_in_flight(change: Change<u16>, current: NonZeroU16) -> Result<NonZeroU16, Problem> {
    let value = change.apply(current.get(), Settings::DEFAULT_MAX_IN_FLIGHT.get());
    NonZeroU16::new(value)
        .filter(|value| *value <= Settings::MAX_IN_FLIGHT_BOUND)
        .ok_or_else(|| out_of_bounds("maxInFlight", &1, &Settings::MAX_IN_FLIGHT_BOUND))
}

fn seconds(change: Change<u32>) -> Change<Duration> {
    change.map(|value| Duration::from_secs(value.into()))
}

fn milliseconds(change: Change<u32>) -> Change<Duration> {
    change.map(|value| Duration::from_millis(value.into()))
}

fn out_of_bounds(field: &str, least: &dyn std::fmt::Display, most: &dyn std::fmt::Display) -> Problem {
    Problem::invalid_field(field, format!("a number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        let current = Some(Rate { per_second: 5.0, burst: NonZeroU32::new(7).expect("not zero") });
        let check = |text: &str, current: Option<Rate>, expected: Option<(f64, u32)>| {
            let changes: RateChanges = serde_json::from_str(text).expect(text);
            let rate = changes.apply(current).ok().map(|rate| (rate.per_second, rate.burst.get()));
            assert_eq!(rate, expected, "{text} on {current:?}");
        };
        check(r#"{"perSecond":2.5}"#, None, Some((2.5, 3)));
        check(r#"{"perSecond":0.01}"#, None, Some((0.01, 1)));
        check(r#"{"perSecond":2.5}"#, current, Some((2.5, 7)));
        check(r#"{"burst":1}"#, current, Some((5.0, 1)));
        check(r#"{"burst":null}"#, current, Some((5.0, 5)));
        check("{}", current, Some((5.0, 7)));
        for (text, current) in [
            ("{}", None),
            (r#"{"burst":1}"#, None),
            (r#"{"perSecond":null}"#, current),
            (r#"{"perSecond":0}"#, None),
            (r#"{"perSecond":-1}"#, None),
            (r#"{"perSecond":10001}"#, None),
            (r#"{"perSecond":1,"burst":0}"#, None),
            (r#"{"perSecond":1,"burst":10001}"#, None),
        ] {
            check(text, current, None);
        }
    }

    #[test]
    fn numbers_out_of_bounds_are_refused_and_null_is_the_default() {
        for (value, accepted) in [(99, false), (100, true), (60_000, true), (60_001, false)] {
            assert_eq!(timeout(Change::Set(value), Settings::DEFAULT_TIMEOUT).is_ok(), accepted, "{value}");
        }
        for (value, accepted) in [(0, false), (1, true), (1_000, true), (1_001, false)] {
            assert_eq!(max_in_flight(Change::Set(value), NonZeroU16::MIN).is_ok(), accepted, "{value}");
        }
        assert_eq!(max_in_flight(Change::Remove, NonZeroU16::MIN), Ok(Settings::DEFAULT_MAX_IN_FLIGHT));
        assert_eq!(max_in_flight(Change::Keep, NonZeroU16::MIN), Ok(NonZeroU16::MIN));
    }

    #[test]
    fn a_retry_policy_changes_by_member_and_names_the_one_it_refuses() {
        let check = |text: &str, expected: Result<(u16, u64), &str>| {
            let changes: RetryChanges = serde_json::from_str(text).expect(text);
            let policy = changes.apply(Policy::DEFAULT);
            let seen = policy.map(|policy| (policy.max_attempts(), policy.max_age().as_secs()));
            match (seen, expected) {
                (Ok(seen), Ok(expected)) => assert_eq!(seen, expected, "{text}"),
                (Err(problem), Err(field)) => assert!(format!("{problem:?}").contains(field), "{text}"),
                (seen, expected) => panic!("{text}: {seen:?}, not {expected:?}"),
            }
        };
        check("{}", Ok((25, 86_400)));
        check(r#"{"maxAttempts":3}"#, Ok((3, 86_400)));
        check(r#"{"maxAttempts":3,"maxAgeSeconds":60}"#, Ok((3, 60)));
        check(r#"{"maxAttempts":0}"#, Err("retry.maxAttempts"));
        check(r#"{"maxAttempts":101}"#, Err("retry.maxAttempts"));
        check(r#"{"maxAgeSeconds":604801}"#, Err("retry.maxAgeSeconds"));
        check(r#"{"initialDelayMs":0}"#, Err("retry.initialDelayMs"));
        check(r#"{"maxDelayMs":86400001}"#, Err("retry.maxDelayMs"));
        check(r#"{"initialDelayMs":5000,"maxDelayMs":4000}"#, Err("retry.initialDelayMs"));
    }
}
