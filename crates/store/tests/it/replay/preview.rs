//! What a preview sees, and for how long that is good.

use postrider_core::{
    id::{DeliveryId, ReplayId},
    retry::DeadReason,
};
use postrider_store::replay::{self, Error, Filter, MAX_OPEN, MAX_UNTIDY, Status};
use time::Duration;
use uuid::Uuid;

use super::{ITEMS, World};

#[tokio::test]
async fn filters_choose_among_the_dead_letters_that_can_be_sent_again() {
    let mut world = World::with_letters(3).await;
    let line = world.die("order.line.added").await;
    for (id, reason) in [
        (world.letters[0], "UPDATE postrider.deliveries SET dead_reason = 'rejected' WHERE delivery_id = $1"),
        (
            world.letters[1],
            "UPDATE postrider.deliveries SET dead_reason = 'body_gone' WHERE delivery_id = $1",
        ),
        (
            world.letters[2],
            "UPDATE postrider.deliveries SET dead_reason = 'endpoint_deleted' WHERE delivery_id = $1",
        ),
    ] {
        world.change(reason, id).await;
    }
    // What is open or delivered is never seen.
    world.history.orders.publish("order.created", "{}").await;
    let accepted = world.history.at - Duration::hours(1);
    let all = 6;
    let check = async |filter: Filter, expected: u32| {
        let (replay, sample) = world.try_preview(&filter, 1_000).await.expect("a preview");
        assert_eq!(replay.matches, expected, "{filter:?}");
        assert_eq!(sample.len(), expected as usize, "{filter:?}");
        assert!(sample.is_sorted() && !replay.is_full);
        world.cancel(replay.id).await.expect("it is not wanted");
    };
    let name = |text: &str| Some(text.parse().expect("a name"));
    let pattern = |text: &str| Some(text.parse().expect("a pattern"));
    check(Filter::default(), all).await;
    check(Filter { endpoint: name("warehouse"), ..Filter::default() }, 3).await;
    check(Filter { endpoint: name("elsewhere"), ..Filter::default() }, 0).await;
    check(Filter { application: name("orders"), ..Filter::default() }, all).await;
    check(Filter { application: name("billing"), ..Filter::default() }, 0).await;
    for (types, expected) in [
        ("*", all),
        ("order.*", all),
        ("order.created", 4),
        ("order.line.*", 2),
        ("order.line", 0),
        ("payment.*", 0),
    ] {
        check(Filter { event_types: pattern(types), ..Filter::default() }, expected).await;
    }
    for reason in DeadReason::ALL {
        let expected = match reason {
            DeadReason::Rejected => 1,
            DeadReason::AttemptsExhausted => all - 1,
            DeadReason::DeadlinePassed
            | DeadReason::EndpointGone
            | DeadReason::EndpointDeleted
            | DeadReason::BodyGone => 0,
        };
        check(Filter { dead_reason: Some(*reason), ..Filter::default() }, expected).await;
    }
    check(Filter { since: Some(accepted), ..Filter::default() }, all).await;
    check(Filter { until: Some(accepted), ..Filter::default() }, 0).await;
    let unknown = DeliveryId::from_uuid(Uuid::now_v7());
    let ids = |ids: &[DeliveryId]| Some(ids.to_vec());
    check(Filter { ids: ids(&[line[0], world.letters[1], line[0], unknown]), ..Filter::default() }, 1).await;
    check(Filter { ids: ids(&line), endpoint: name("archive"), ..Filter::default() }, 1).await;
}

#[tokio::test]
async fn letters_of_a_deleted_endpoint_are_not_seen() {
    let world = World::with_letters(2).await;
    sqlx::query("UPDATE postrider.endpoints SET enabled = false, disabled_reason = 'requested', deleted_at = now() WHERE name = 'archive'")
        .execute(world.history.pool())
        .await
        .expect("deleted");
    assert_eq!(world.preview(&Filter::default()).await.matches, 2);
}

#[tokio::test]
async fn a_preview_holds_so_many_letters_and_the_oldest_first() {
    let world = World::with_letters(3).await;
    let (replay, sample) = world.try_preview(&Filter::default(), 4).await.expect("a preview");
    assert_eq!((replay.matches, replay.is_full), (4, true));
    assert_eq!(sample, world.letters[..4]);
}

#[tokio::test]
async fn a_tenant_has_so_many_open_replays_and_another_has_its_own() {
    let world = World::with_letters(1).await;
    let mut ids = Vec::new();
    for _ in 0..MAX_OPEN {
        ids.push(world.preview(&Filter::default()).await.id);
    }
    world.execute(ids[0]).await.expect("a running one counts, too");
    let refused = world.try_preview(&Filter::default(), 1).await;
    assert!(matches!(refused, Err(Error::TooManyOpen)), "{refused:?}");
    let rival = world.history.scenario().tenant("rival").await;
    let mut transaction = postrider_store::edit::begin(world.history.pool()).await.expect("a transaction");
    let new = replay::NewReplay {
        id: ReplayId::from_uuid(Uuid::now_v7()),
        filter: &Filter::default(),
        filter_text: "{}",
        most: 10,
    };
    let (foreign, _) =
        replay::preview(&mut transaction, rival.id, new, 10).await.expect("another tenant has room");
    assert_eq!(foreign.matches, 0, "and sees nobody else's letters");
    transaction.rollback().await.expect("rolled back");
    world.cancel(ids[1]).await.expect("cancelled");
    world.preview(&Filter::default()).await;
}

/// Who previews and cancels in a loop writes no more than is removed.
#[tokio::test]
async fn a_tenant_has_so_many_replays_that_are_over_and_not_tidied_up_yet() {
    let mut world = World::with_letters(1).await;
    let filter = Filter::default();
    for _ in 0..MAX_UNTIDY {
        let replay = world.preview(&filter).await;
        world.cancel(replay.id).await.expect("cancelled");
    }
    let refused = world.try_preview(&filter, 1).await;
    assert!(matches!(refused, Err(Error::TooManyUntidy)), "{refused:?}");
    assert!(replay::tidy(&mut world.lane, 100).await.expect("tidied"));
    world.preview(&filter).await;
}

/// As many as there is room for, though all ask at once.
#[tokio::test]
async fn racing_previews_do_not_exceed_the_bound() {
    let world = World::with_letters(1).await;
    let filter = Filter::default();
    let racing = (0..2 * MAX_OPEN).map(|_| world.try_preview(&filter, 1));
    let outcomes = futures::future::join_all(racing).await;
    let made = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(made, MAX_OPEN as usize);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(_) | Err(Error::TooManyOpen))));
}

#[tokio::test]
async fn a_replay_runs_once_and_not_after_it_expired_or_was_cancelled() {
    let mut world = World::with_letters(1).await;
    let running = world.running().await;
    assert!(matches!(world.execute(running.id).await, Err(Error::Executed)));
    world.run().await;
    assert!(matches!(world.execute(running.id).await, Err(Error::Executed)));
    assert!(matches!(world.cancel(running.id).await, Err(Error::Over)));

    let cancelled = world.preview(&Filter::default()).await;
    world.cancel(cancelled.id).await.expect("cancelled");
    assert!(matches!(world.execute(cancelled.id).await, Err(Error::Over)));
    assert!(matches!(world.cancel(cancelled.id).await, Err(Error::Over)));

    let expired = world.preview(&Filter::default()).await;
    sqlx::query("UPDATE postrider.replays SET expires_at = now() WHERE state = 'previewed'")
        .execute(world.history.pool())
        .await
        .expect("an hour passes");
    assert_eq!(world.look(expired.id).await.status, Status::Expired, "before that is written down");
    assert!(matches!(world.execute(expired.id).await, Err(Error::Expired)));
    // Passed over as long as the refused one has not let go of it.
    while replay::expire(&mut world.lane, 10).await.expect("written down") == 0 {}
    let shown = world.look(expired.id).await;
    assert_eq!((shown.status, shown.ended_at), (Status::Expired, Some(shown.expires_at)));
    assert!(matches!(world.cancel(expired.id).await, Err(Error::Expired)));
    assert!(matches!(world.execute(ReplayId::from_uuid(Uuid::now_v7())).await, Err(Error::NotFound)));
}

#[tokio::test]
async fn another_tenants_replay_is_unknown() {
    let world = World::with_letters(1).await;
    let replay = world.preview(&Filter::default()).await;
    let rival = world.history.scenario().tenant("rival").await.id;
    let mut transaction = postrider_store::edit::begin(world.history.pool()).await.expect("a transaction");
    assert!(matches!(replay::execute(&mut transaction, rival, replay.id).await, Err(Error::NotFound)));
    assert!(matches!(replay::cancel(&mut transaction, rival, replay.id).await, Err(Error::NotFound)));
    assert_eq!(replay::get(&mut transaction, rival, replay.id).await.expect("read"), None);
}

#[tokio::test]
async fn what_is_over_is_tidied_up_in_batches() {
    let mut world = World::with_letters(5).await;
    let kept = world.preview(&Filter::default()).await;
    let cancelled = world.preview(&Filter::default()).await;
    world.cancel(cancelled.id).await.expect("cancelled");
    assert_eq!(world.count(ITEMS).await, 20);
    let mut batches = 0;
    while replay::tidy(&mut world.lane, 4).await.expect("tidied") {
        batches += 1;
    }
    assert_eq!((batches, world.count(ITEMS).await), (3, 10), "the other's letters stay");
    let endpoints = "SELECT count(*) FROM postrider.replay_endpoints";
    assert_eq!(world.count(endpoints).await, 2);
    assert_eq!(world.look(cancelled.id).await.matches, 10, "what was done stays known");
    world.execute(kept.id).await.expect("executed");
    world.run().await;
    assert_eq!(world.look(kept.id).await.replayed, 10);
}
