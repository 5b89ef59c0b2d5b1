//! Endpoints' rates, asked for as fast as can be.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use postrider_core::limiter::{Answer, Entry, Limiter};
use tokio::{task::JoinSet, time::sleep};

use super::parties::{Parties, again, entry, now, rate};

/// How long it is asked for.
const TIME: Duration = Duration::from_millis(1_200);

/// It was granted between the two.
#[derive(Debug, Clone, Copy)]
struct Grant {
    asked: Instant,
    answered: Instant,
}

/// Asks until the time is over, and waits as it is told.
async fn ask(limiter: Arc<dyn Limiter>, entry: Entry, end: Instant) -> Vec<Grant> {
    let mut grants = Vec::new();
    let mut wish = entry;
    while now() < end {
        let asked = now();
        match limiter.enter(wish).await {
            Answer::Granted => {
                grants.push(Grant { asked, answered: now() });
                limiter.leave(wish.endpoint_id, wish.lease_id);
                wish = again(&wish);
            }
            Answer::Wait(wait) => {
                assert!(!wait.is_zero(), "whoever waits for nothing would never stop asking");
                sleep(wait.min(TIME)).await;
            }
        }
    }
    limiter.leave(wish.endpoint_id, wish.lease_id);
    grants
}

pub(super) async fn never_more_than_the_burst_and_what_the_time_gave(
    parties: &Parties,
    per_second: f64,
    burst: u32,
    askers: usize,
) {
    let entry = entry(1_000, Some(rate(per_second, burst)));
    let (start, mut asking) = (now(), JoinSet::new());
    for turn in 0..askers {
        asking.spawn(ask(parties.party(turn), again(&entry), start + TIME));
    }
    let mut grants: Vec<Grant> = asking.join_all().await.into_iter().flatten().collect();
    grants.sort_by_key(|grant| grant.asked);

    let shown = format!("{per_second}/s, {burst} at once, {askers} askers");
    let least = f64::from(burst) + per_second * TIME.as_secs_f64() * 0.6;
    let count = u32::try_from(grants.len()).expect("few");
    assert!(f64::from(count) >= least, "{shown}: only {count} were granted");
    for (index, first) in grants.iter().enumerate() {
        let mut answers: Vec<Instant> = grants[index..].iter().map(|grant| grant.answered).collect();
        answers.sort();
        for (count, answered) in (1_u32..).zip(answers) {
            // The time between the two grants was this long at most.
            let most = f64::from(burst) + per_second * (answered - first.asked).as_secs_f64();
            assert!(f64::from(count) <= most + 0.01, "{shown}: {count} where {most} are allowed");
        }
    }
}
