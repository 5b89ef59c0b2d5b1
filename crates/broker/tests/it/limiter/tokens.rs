//! Tenants' buckets.

use std::time::Duration;

use postrider_core::limiter::{Answer, Taken};
use tokio::time::sleep;

use super::parties::{Parties, rate, tenant};

/// The wait was told within this of what it should be, by clocks that went on meanwhile.
const SLACK: Duration = Duration::from_millis(900);

#[track_caller]
fn waits(taken: Taken, seconds: f64) {
    let expected = Duration::from_secs_f64(seconds);
    let Answer::Wait(wait) = taken.answer else { panic!("{taken:?} and not {expected:?}") };
    let range = expected.saturating_sub(SLACK)..=expected + Duration::from_millis(1);
    assert!(range.contains(&wait), "{wait:?} and not {expected:?}");
}

#[track_caller]
fn granted(taken: Taken, left: u32) {
    assert_eq!((taken.answer, taken.level.tokens), (Answer::Granted, left));
}

pub(super) async fn more_than_a_burst_waits_until_it_is_full_and_leaves_a_debt(parties: &Parties) {
    let (first, other) = (parties.first(), parties.other());
    let (tenant, slow) = (tenant(), rate(0.1, 5));
    granted(first.take(tenant, slow, 1).await, 4);
    waits(other.take(tenant, slow, 25).await, 10.0);
    granted(other.take(tenant, slow, 0).await, 4);

    let (tenant, quick) = (self::tenant(), rate(100.0, 5));
    granted(other.take(tenant, quick, 25).await, 0);
    let refused = first.take(tenant, quick, 1).await;
    let Answer::Wait(wait) = refused.answer else { panic!("there is a debt of 20: {refused:?}") };
    assert!(wait <= Duration::from_millis(211), "{wait:?}");
    assert_eq!(refused.level.tokens, 0);
    sleep(wait).await;
    assert_eq!(first.take(tenant, quick, 1).await.answer, Answer::Granted, "after the time that was told");

    let (tenant, slow) = (self::tenant(), rate(0.1, 5));
    granted(first.take(tenant, slow, 25).await, 0);
    waits(other.take(tenant, slow, 0).await, 200.0);
    let refused = other.take(tenant, slow, 1).await;
    waits(refused, 210.0);
    assert!(refused.level.until_full > Duration::from_secs(249), "{refused:?}");
}

pub(super) async fn a_changed_rate_holds_at_once(parties: &Parties) {
    let (first, other) = (parties.first(), parties.other());
    let tenant = tenant();
    granted(first.take(tenant, rate(0.1, 4), 1).await, 3);
    // A larger burst gives nothing by itself, and a smaller one takes what is too much.
    granted(other.take(tenant, rate(0.1, 9), 1).await, 2);
    granted(first.take(tenant, rate(0.1, 1), 0).await, 1);
    granted(other.take(tenant, rate(0.1, 9), 1).await, 0);
    waits(first.take(tenant, rate(0.1, 9), 1).await, 10.0);
    waits(other.take(tenant, rate(0.05, 9), 1).await, 20.0);
    let Answer::Wait(soon) = first.take(tenant, rate(100.0, 9), 1).await.answer else {
        panic!("what passed until now passed under the slow rate");
    };
    assert!(soon <= Duration::from_millis(11), "{soon:?}");

    // What passed until now filled no more than the bucket that there was.
    let tenant = self::tenant();
    granted(first.take(tenant, rate(100.0, 5), 5).await, 0);
    sleep(Duration::from_millis(150)).await;
    granted(other.take(tenant, rate(0.1, 50), 0).await, 5);
}

pub(super) async fn each_has_a_bucket_of_its_own(parties: &Parties) {
    let (one, another) = (tenant(), tenant());
    granted(parties.first().take(one, rate(0.1, 3), 3).await, 0);
    granted(parties.other().take(another, rate(0.1, 3), 2).await, 1);
    waits(parties.other().take(one, rate(0.1, 3), 1).await, 10.0);
}

pub(super) async fn what_a_process_knows_is_what_it_was_told(parties: &Parties) {
    let limiter = parties.first();
    let (tenant, slow) = (tenant(), rate(0.1, 3));
    granted(limiter.look(tenant, slow), 3);
    granted(limiter.take(tenant, slow, 2).await, 1);
    granted(limiter.look(tenant, slow), 1);
    granted(limiter.take(tenant, slow, 1).await, 0);
    waits(limiter.look(tenant, slow), 10.0);
}
