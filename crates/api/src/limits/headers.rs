//! What publishers are told of their limits: `RateLimit-Policy` and `RateLimit`, as in revision 10 of the draft "`RateLimit`
//! header fields for HTTP" (draft-ietf-httpapi-ratelimit-headers). Both are lists of strings with parameters (RFC 9651):
//! a policy has a quota `q` and its window in seconds `w`; of each there is left `r`, until more is there in `t` seconds.

use std::time::Duration;

use axum::response::Response;
use http::{HeaderName, HeaderValue};
use postrider_core::{
    bucket::{Level, Rate},
    problem::Code,
    quota::{Excess, Quota},
};

use crate::problem::Problem;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STANDING: HeaderName = HeaderName::from_static("ratelimit");

const HOUR_SECONDS: u64 = 3_600;

/// When to come back where nobody knows when there will be room.
const LOOK_AGAIN_SECONDS: u32 = 30;

/// How a tenant's bucket stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Standing {
    pub(super) rate: Rate,
    pub(super) level: Level,
}

impl Standing {
    pub(super) fn headers(&self) -> [(HeaderName, HeaderValue); 2] {
        let burst = self.rate.burst;
        let window =
            whole_seconds(Duration::from_secs_f64(f64::from(burst.get()) / self.rate.per_second)).max(1);
        let (left, until_full) = (self.level.tokens, whole_seconds(self.level.until_full));
        [
            (POLICY, value(format!("\"rate\";q={burst};w={window}"))),
            (STANDING, value(format!("\"rate\";r={left};t={until_full}"))),
        ]
    }
}

/// Adds how the bucket stands to an answer.
pub(crate) fn tell(standing: Option<Standing>, mut response: Response) -> Response {
    if let Some(standing) = standing {
        response.headers_mut().extend(standing.headers());
    }
    response
}

/// The answer to an event that is over one of its tenant's quotas.
pub(crate) fn over_quota(excess: Excess) -> Problem {
    let Excess { quota, limit, needed, left, retry_after } = excess;
    let (what, policy) = match quota {
        Quota::HourlyEvents => ("events in an hour", format!("\"hourly-events\";q={limit};w={HOUR_SECONDS}")),
        Quota::HourlyBytes => {
            ("bytes in an hour", format!("\"hourly-bytes\";q={limit};qu=\"content-bytes\";w={HOUR_SECONDS}"))
        }
        Quota::OpenDeliveries => ("open deliveries", format!("\"open-deliveries\";q={limit}")),
    };
    let name = policy.split(';').next().unwrap_or_default();
    let standing = match retry_after {
        Some(wait) => format!("{name};r={left};t={}", whole_seconds(wait)),
        None => format!("{name};r={left}"),
    };
    let (code, wait_seconds, advice) = match retry_after {
        // Trying again would never help.
        _ if excess.is_for_good() => {
            (Code::LargerThanQuota, None, "This event alone needs more than the quota".to_owned())
        }
        Some(wait) => {
            let seconds = whole_seconds(wait);
            let advice = format!("There will be enough in {seconds} seconds, if nothing else is published");
            (Code::QuotaExceeded, Some(self::retry_after(wait)), advice)
        }
        None => {
            let advice =
                "Send it again when some have ended; what holds them up is in the list of deliveries";
            (Code::QuotaExceeded, Some(LOOK_AGAIN_SECONDS), advice.to_owned())
        }
    };
    let detail = format!(
        "The tenant may have {limit} {what} (`{}`), of which {left} are left, less than the {needed} that this event needs. \
         Nothing was stored. {advice}.",
        quota.as_str()
    );
    let problem = Problem::new(code, detail);
    match wait_seconds {
        Some(seconds) => problem.retry_after(seconds),
        None => problem,
    }
    .with_header(POLICY, value(policy))
    .with_header(STANDING, value(standing))
}

/// What `Retry-After` says of a wait.
pub(super) fn retry_after(wait: Duration) -> u32 {
    u32::try_from(whole_seconds(wait)).unwrap_or(u32::MAX).max(1)
}

/// Rounded up, so that whoever waits as long does not come too early.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// Digits, names of ours and what stands between them: always a header's value.
fn value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(text).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use axum::response::IntoResponse as _;

    use super::*;

    #[test]
    fn headers_say_what_may_be_used_and_what_is_left() {
        let check = |per_second, burst, tokens, until_full_ms, expected: [&str; 2]| {
            let rate = Rate { per_second, burst: NonZeroU32::new(burst).expect("not zero") };
            let level = Level { tokens, until_full: Duration::from_millis(until_full_ms) };
            let standing = Standing { rate, level };
            assert_eq!(standing.headers().map(|(_, value)| value), expected);
        };
        check(10.0, 20, 19, 100, ["\"rate\";q=20;w=2", "\"rate\";r=19;t=1"]);
        check(100.0, 50, 0, 7_000, ["\"rate\";q=50;w=1", "\"rate\";r=0;t=7"]);
        check(0.01, 1, 1, 0, ["\"rate\";q=1;w=100", "\"rate\";r=1;t=0"]);
    }

    #[test]
    fn a_quota_says_when_there_is_more_where_time_brings_it() {
        let check = |quota, needed, retry_after: Option<u64>, expected: [&str; 2], advice: &str| {
            let excess = Excess {
                quota,
                limit: 10,
                needed,
                left: 3,
                retry_after: retry_after.map(Duration::from_secs),
            };
            let response = over_quota(excess).into_response();
            let never = needed > 10;
            assert_eq!(response.status(), if never { 413 } else { 429 });
            let header = |name: &str| {
                response.headers().get(name).map(|value| value.to_str().expect("text").to_owned())
            };
            assert_eq!(
                [header("ratelimit-policy"), header("ratelimit")],
                expected.map(|text| Some(text.to_owned()))
            );
            let seconds = retry_after.unwrap_or(LOOK_AGAIN_SECONDS.into());
            assert_eq!(header("retry-after"), (!never).then(|| seconds.to_string()));
            let problem = format!("{:?}", over_quota(excess));
            assert!(problem.contains(advice) && problem.contains(&format!("the {needed} that")), "{problem}");
        };
        let events = ["\"hourly-events\";q=10;w=3600", "\"hourly-events\";r=3;t=90"];
        check(Quota::HourlyEvents, 4, Some(90), events, "in 90 seconds");
        let bytes = ["\"hourly-bytes\";q=10;qu=\"content-bytes\";w=3600", "\"hourly-bytes\";r=3"];
        check(Quota::HourlyBytes, 11, None, bytes, "This event alone");
        let open = ["\"open-deliveries\";q=10", "\"open-deliveries\";r=3"];
        check(Quota::OpenDeliveries, 10, None, open, "when some have ended");
        check(Quota::OpenDeliveries, 11, None, open, "This event alone");
    }
}
