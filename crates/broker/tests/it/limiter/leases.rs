//! Leases at endpoints.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::poll;
use postrider_core::limiter::{Answer, Entry, LONGEST_LEASE, Limiter};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::parties::{Parties, again, entry, now, rate};

/// Longest wait for what must be granted in the end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests of one asker.
const REQUESTS: u32 = 12;

/// Asks until it is granted.
async fn enter(limiter: &Arc<dyn Limiter>, entry: Entry) {
    let asking = async {
        while let Answer::Wait(wait) = limiter.enter(entry).await {
            sleep(wait).await;
        }
    };
    timeout(PATIENCE, asking).await.expect("it is granted some time");
}

pub(super) async fn never_more_at_once_than_allowed(parties: &Parties, max_in_flight: u16, askers: usize) {
    let (entry, in_flight) = (entry(max_in_flight, None), Arc::<AtomicU32>::default());
    let (highest, mut asking) = (Arc::<AtomicU32>::default(), JoinSet::new());
    for turn in 0..askers {
        let (limiter, in_flight, highest) =
            (parties.party(turn), Arc::clone(&in_flight), Arc::clone(&highest));
        asking.spawn(async move {
            for request in 0..REQUESTS {
                let wish = again(&entry);
                enter(&limiter, wish).await;
                highest.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_millis(u64::from(request % 4) * 3)).await;
                in_flight.fetch_sub(1, Ordering::SeqCst);
                limiter.leave(wish.endpoint_id, wish.lease_id);
            }
        });
    }
    asking.join_all().await;
    let highest = highest.load(Ordering::SeqCst);
    assert_eq!(highest, u32::from(max_in_flight), "of {askers} askers");
}

pub(super) async fn both_limits_hold_together(parties: &Parties) {
    let first = entry(1, Some(rate(0.1, 2)));
    enter(&parties.first(), first).await;
    let second = again(&first);
    assert!(
        matches!(parties.other().enter(second).await, Answer::Wait(wait) if wait < Duration::from_secs(1))
    );
    parties.first().leave(first.endpoint_id, first.lease_id);
    // Had the refusal cost a token, none would be left.
    enter(&parties.other(), second).await;
    parties.other().leave(second.endpoint_id, second.lease_id);
    let third = parties.first().enter(again(&first)).await;
    assert!(matches!(third, Answer::Wait(wait) if wait > Duration::from_secs(5)), "{third:?}");
}

pub(super) async fn a_lease_that_is_given_back_is_free(parties: &Parties) {
    let (first, other) = (parties.first(), parties.other());
    let held = entry(1, None);
    enter(&first, held).await;
    let wish = again(&held);
    assert!(matches!(other.enter(wish).await, Answer::Wait(_)), "there is one");
    first.leave(held.endpoint_id, held.lease_id);
    enter(&other, wish).await;
    // Giving back what is not held changes nothing.
    first.leave(held.endpoint_id, held.lease_id);
    assert!(matches!(first.enter(again(&held)).await, Answer::Wait(_)), "the other one has it");
    other.leave(wish.endpoint_id, wish.lease_id);
    enter(&first, again(&held)).await;
}

pub(super) async fn a_wish_that_is_given_back_is_none(parties: &Parties) {
    let (first, other) = (parties.first(), parties.other());
    let held = entry(1, None);
    enter(&first, held).await;
    let wish = again(&held);
    assert!(matches!(other.enter(wish).await, Answer::Wait(_)), "there is one");
    other.leave(wish.endpoint_id, wish.lease_id);
    first.leave(held.endpoint_id, held.lease_id);
    enter(&first, again(&held)).await;

    // Whoever asks and is gone before the answer has no lease.
    let held = entry(1, None);
    let _ = poll!(other.enter(held));
    other.leave(held.endpoint_id, held.lease_id);
    enter(&first, again(&held)).await;
}

pub(super) async fn a_lease_that_nobody_gives_back_ends(parties: &Parties) {
    let lifetime = Duration::from_millis(300);
    let start = now();
    let lost = Entry { lifetime, ..entry(1, None) };
    enter(&parties.first(), lost).await;
    enter(&parties.other(), again(&lost)).await;
    assert!(start.elapsed() >= lifetime, "after {:?}", start.elapsed());
}

/// One that asks for longer has it for the longest time, and not for none.
pub(super) async fn a_lease_that_is_to_live_too_long_is_one(parties: &Parties) {
    let held = Entry { lifetime: 2 * LONGEST_LEASE, ..entry(1, None) };
    enter(&parties.first(), held).await;
    assert!(matches!(parties.other().enter(again(&held)).await, Answer::Wait(_)), "there is one");
}

pub(super) async fn a_granted_lease_costs_nothing_more(parties: &Parties) {
    let limiter = parties.first();
    let held = entry(3, Some(rate(0.1, 2)));
    for _ in 0..3 {
        assert_eq!(limiter.enter(held).await, Answer::Granted);
    }
    assert_eq!(limiter.enter(again(&held)).await, Answer::Granted);
    assert!(matches!(limiter.enter(again(&held)).await, Answer::Wait(_)), "two tokens were there");
}
