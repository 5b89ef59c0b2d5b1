//! How fast tenants publish: a token bucket for each that has a rate, in this process. A second kind of bucket, shared by
//! all processes, would stand here.
//!
//! Invariant: an event costs a token, whatever comes of it; the token is asked for once it is known whose event it is, and
//! before its body is read. Nobody is refused by a rate that was read long ago.

mod headers;

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use postrider_core::{
    bucket::{Bucket, Rate},
    id::TenantId,
    problem::Code,
};

use self::headers::Standing;
pub(crate) use self::headers::{over_quota, tell};
use crate::{authenticate::Publisher, problem::Problem, state::State};

/// Tenants remembered; beyond that the idle ones are forgotten.
const MAX_REMEMBERED_TENANTS: usize = 10_000;

/// Between two looks at whether the rate of a tenant that is refused has been changed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The buckets of this process.
#[derive(Debug, Default)]
pub(crate) struct Buckets(Mutex<HashMap<TenantId, Entry>>);

#[derive(Debug)]
struct Entry {
    bucket: Bucket,
    /// When its rate was last looked up because it refused somebody.
    looked_at: Option<Duration>,
}

/// Too many tokens were asked for.
#[derive(Debug, PartialEq)]
struct Refused {
    standing: Standing,
    wait: Duration,
    /// It is time to look whether the rate is still what it was.
    is_look_due: bool,
}

/// What is asked of a bucket.
#[derive(Debug, Clone, Copy)]
enum Ask {
    /// Whether there is any token.
    Any,
    /// So many tokens.
    Take(u32),
}

impl Buckets {
    fn ask(&self, tenant_id: TenantId, rate: Rate, ask: Ask, now: Duration) -> Result<Standing, Refused> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= MAX_REMEMBERED_TENANTS && !entries.contains_key(&tenant_id) {
            // A full bucket is as good as a new one.
            entries.retain(|_, entry| !entry.bucket.is_full(now));
            if entries.len() >= MAX_REMEMBERED_TENANTS {
                entries.clear();
            }
        }
        let fresh = || Entry { bucket: Bucket::full(rate, now), looked_at: None };
        let entry = entries.entry(tenant_id).or_insert_with(fresh);
        entry.bucket.set_rate(rate, now);
        let answer = match ask {
            Ask::Any if entry.bucket.whole_tokens(now) == 0 => Err(entry.bucket.wait(1, now)),
            Ask::Any => Ok(()),
            Ask::Take(count) => entry.bucket.take(count, now),
        };
        let standing = Standing {
            rate,
            tokens: entry.bucket.whole_tokens(now),
            until_full: entry.bucket.until_full(now),
        };
        answer.map(|()| standing).map_err(|wait| {
            let is_look_due = entry.looked_at.is_none_or(|at| now.saturating_sub(at) >= LOOK_AGAIN);
            if is_look_due {
                entry.looked_at = Some(now);
            }
            Refused { standing, wait, is_look_due }
        })
    }
}

/// Takes a token for each of so many events. `None`: the tenant has no rate.
///
/// # Errors
/// `429` where there are not as many.
pub(crate) async fn take(
    publisher: &mut Publisher,
    count: usize,
    state: &State,
) -> Result<Option<Standing>, Problem> {
    ask(publisher, Ask::Take(u32::try_from(count).unwrap_or(u32::MAX)), state).await
}

/// Refuses whoever has no token at all, before more is known of what it sends.
///
/// # Errors
/// `429` where there is none.
pub(crate) async fn require_any(publisher: &mut Publisher, state: &State) -> Result<(), Problem> {
    ask(publisher, Ask::Any, state).await.map(drop)
}

async fn ask(publisher: &mut Publisher, ask: Ask, state: &State) -> Result<Option<Standing>, Problem> {
    let Some(rate) = publisher.routing.limits.rate else { return Ok(None) };
    let tenant_id = publisher.routing.tenant_id;
    let refused = match state.buckets().ask(tenant_id, rate, ask, (state.monotonic)()) {
        Ok(standing) => return Ok(Some(standing)),
        Err(refused) => refused,
    };
    if refused.is_look_due {
        // Whoever is turned away here never gets as far as ingest, which would notice that the rate was changed.
        publisher.renew(state).await?;
        let newest = publisher.routing.limits.rate;
        if newest != Some(rate) {
            let Some(rate) = newest else { return Ok(None) };
            let again = state.buckets().ask(tenant_id, rate, ask, (state.monotonic)());
            return again.map(Some).map_err(|refused| too_fast(&refused));
        }
    }
    Err(too_fast(&refused))
}

fn too_fast(Refused { standing, wait, .. }: &Refused) -> Problem {
    metrics::counter!("postrider_events_over_rate_total").increment(1);
    let detail = format!(
        "The tenant may publish {} events per second, and {} at once after a pause. Nothing was stored; send it again \
         after the time in `Retry-After`, with the same Idempotency-Key if it has one.",
        standing.rate.per_second, standing.rate.burst,
    );
    let problem = Problem::new(Code::RateLimited, detail).retry_after(headers::retry_after(*wait));
    standing.headers().into_iter().fold(problem, |problem, (name, value)| problem.with_header(name, value))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use uuid::Uuid;

    use super::*;

    fn tenant(number: usize) -> TenantId {
        TenantId::from_uuid(Uuid::from_u128(number as u128))
    }

    fn rate(per_second: f64, burst: u32) -> Rate {
        Rate { per_second, burst: NonZeroU32::new(burst).expect("not zero") }
    }

    #[test]
    fn each_tenant_has_a_bucket_of_its_own_and_a_changed_rate_holds_at_once() {
        let buckets = Buckets::default();
        let now = Duration::from_secs(5);
        let take = |number, rate, count| buckets.ask(tenant(number), rate, Ask::Take(count), now);
        assert_eq!(take(1, rate(1.0, 3), 2).map(|standing| standing.tokens), Ok(1));
        assert_eq!(take(2, rate(1.0, 3), 3).map(|standing| standing.tokens), Ok(0));
        let refused = take(1, rate(1.0, 3), 2).expect_err("one is left");
        assert_eq!((refused.wait.as_millis(), refused.is_look_due), (1_000, true));
        assert!(!take(1, rate(1.0, 3), 2).expect_err("one is left").is_look_due, "just looked");
        assert_eq!(take(1, rate(2.0, 3), 2).expect_err("one is left").wait.as_millis(), 500);
        let any = |number| buckets.ask(tenant(number), rate(1.0, 3), Ask::Any, now);
        assert!(any(1).is_ok() && any(2).is_err());
    }

    #[test]
    fn idle_tenants_are_forgotten_and_a_crowd_is_bounded() {
        let buckets = Buckets::default();
        let ask = |number, ask, at| buckets.ask(tenant(number), rate(1.0, 1), ask, Duration::from_secs(at));
        let count = || buckets.0.lock().expect("not poisoned").len();
        for number in 0..MAX_REMEMBERED_TENANTS {
            // All but ten have taken their token long ago.
            let at = if number < 10 { 8 } else { 0 };
            assert!(ask(number, Ask::Take(1), at).is_ok());
        }
        assert!(ask(usize::MAX, Ask::Take(1), 8).is_ok());
        assert_eq!(count(), 11);
        assert!(ask(3, Ask::Take(1), 8).is_err(), "who is not idle is remembered");
        for number in 10..2 * MAX_REMEMBERED_TENANTS {
            assert!(ask(number, Ask::Take(1), 8).is_ok());
            assert!(count() <= MAX_REMEMBERED_TENANTS);
        }
    }
}
