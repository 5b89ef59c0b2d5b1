//! How fast tenants publish: each that has a rate has a token bucket, of this process or, where limits are shared, of all
//! processes together.
//!
//! Invariant: an event costs a token, whatever comes of it; the token is asked for once it is known whose event it is, and
//! before its body is read. Nobody is refused by a rate that was read long ago. Buckets that are shared are asked once for a
//! request, save where the rate has just been changed.

mod headers;

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use postrider_core::{
    bucket::Rate,
    id::TenantId,
    limiter::{Answer, Taken},
    problem::Code,
};

use self::headers::Standing;
pub(crate) use self::headers::{over_quota, tell};
use crate::{authenticate::Publisher, problem::Problem, state::State};

/// Refused tenants remembered; beyond that those whose rate was looked up a while ago are forgotten.
const MAX_REMEMBERED_TENANTS: usize = 10_000;

/// Between two looks at whether the rate of a tenant that is refused has been changed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// When the rate of each tenant was last looked up because it refused somebody.
#[derive(Debug, Default)]
pub(crate) struct Looks(Mutex<HashMap<TenantId, Duration>>);

/// Too many tokens were asked for.
#[derive(Debug)]
struct Refused {
    standing: Standing,
    wait: Duration,
}

/// What is asked of a bucket.
#[derive(Debug, Clone, Copy)]
enum Ask {
    /// Whether there is any token, as far as this process knows.
    Any,
    /// So many tokens.
    Take(u32),
}

impl Looks {
    /// Whether it is time to look; then it is assumed that somebody does.
    fn is_due(&self, tenant_id: TenantId, now: Duration) -> bool {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: &Duration| now.saturating_sub(*at) < LOOK_AGAIN;
        if looks.get(&tenant_id).is_some_and(is_recent) {
            return false;
        }
        if looks.len() >= MAX_REMEMBERED_TENANTS {
            looks.retain(|_, at| is_recent(at));
            if looks.len() >= MAX_REMEMBERED_TENANTS {
                looks.clear();
            }
        }
        looks.insert(tenant_id, now);
        true
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
    let refused = match bid(tenant_id, rate, ask, state).await {
        Ok(standing) => return Ok(Some(standing)),
        Err(refused) => refused,
    };
    if state.looks().is_due(tenant_id, (state.monotonic)()) {
        // Whoever is turned away here never gets as far as ingest, which would notice that the rate was changed.
        publisher.renew(state).await?;
        let newest = publisher.routing.limits.rate;
        if newest != Some(rate) {
            let Some(rate) = newest else { return Ok(None) };
            let again = bid(tenant_id, rate, ask, state).await;
            return again.map(Some).map_err(|refused| too_fast(&refused));
        }
    }
    Err(too_fast(&refused))
}

async fn bid(tenant_id: TenantId, rate: Rate, ask: Ask, state: &State) -> Result<Standing, Refused> {
    let Taken { answer, level } = match ask {
        Ask::Any => state.limiter().look(tenant_id, rate),
        Ask::Take(count) => state.limiter().take(tenant_id, rate, count).await,
    };
    let standing = Standing { rate, level };
    match answer {
        Answer::Granted => Ok(standing),
        Answer::Wait(wait) => Err(Refused { standing, wait }),
    }
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
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_rate_is_looked_up_now_and_then_and_who_is_remembered_is_bounded() {
        let looks = Looks::default();
        let tenant = |number: usize| TenantId::from_uuid(Uuid::from_u128(number as u128));
        let ms = Duration::from_millis;
        for (number, at_ms, expected) in
            [(1, 0, true), (1, 999, false), (2, 999, true), (1, 1_000, true), (1, 1_999, false)]
        {
            assert_eq!(looks.is_due(tenant(number), ms(at_ms)), expected, "{number} at {at_ms} ms");
        }
        for number in 0..3 * MAX_REMEMBERED_TENANTS {
            assert!(looks.is_due(tenant(number), ms(9_000)));
            assert!(looks.0.lock().expect("not poisoned").len() <= MAX_REMEMBERED_TENANTS);
        }
    }
}
