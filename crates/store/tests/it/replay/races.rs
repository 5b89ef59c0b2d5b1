//! Two who want the same letters, in orders that are forced.

use postrider_store::{
    Error, edit,
    lanes::{self, Lane},
    outbox::Audience,
    replay::{self, Filter, Load, Portion, Status},
    retry,
};

use super::{NO_REST, OPEN, World, options, turn};

fn all(_: Load) -> Portion {
    Portion { letters: 100, rest: NO_REST }
}

#[tokio::test]
async fn two_executors_work_on_different_endpoints() {
    let mut world = World::with_letters(2).await;
    world.running().await;
    let mut other = lanes::connect(&options(&world.history), Lane::Work).await.expect("a connection");
    let mut third = lanes::connect(&options(&world.history), Lane::Work).await.expect("a connection");
    let tenant_id = world.history.tenant.id;
    let first = replay::next(&mut world.lane, tenant_id).await.expect("a look").expect("a turn");
    let second = replay::next(&mut other, tenant_id).await.expect("a look").expect("another turn");
    assert_ne!(first.turn.endpoint_id, second.turn.endpoint_id);
    let none = replay::next(&mut third, tenant_id).await.expect("a look");
    assert!(none.is_none(), "both are being worked on");
    let (first, second) =
        tokio::join!(first.advance(Audience::Nobody, all), second.advance(Audience::Nobody, all));
    assert_eq!((first.expect("a turn").replayed, second.expect("a turn").replayed), (2, 2));
    assert_eq!(world.count(OPEN).await, 4);
}

/// Four executors at once, each as fast as it can, on two replays of the same letters.
#[tokio::test]
async fn two_replays_of_the_same_letters_bring_each_back_once() {
    let mut world = World::with_letters(40).await;
    let replays = [world.running().await, world.running().await];
    let executors = (0..4).map(|_| {
        let history = &world.history;
        async move {
            let mut lane = lanes::connect(&options(history), Lane::Work).await.expect("a connection");
            let tenant_id = history.tenant.id;
            let mut idle = 0;
            // One that finds nothing for some time may have found what others were at.
            while idle < 20 {
                let Some(step) = replay::next(&mut lane, tenant_id).await.expect("a look") else {
                    idle += 1;
                    continue;
                };
                match step.advance(Audience::Nobody, |_| Portion { letters: 7, rest: NO_REST }).await {
                    Ok(_) => idle = 0,
                    // It waited for another's batch longer than a lane waits.
                    Err(Error::Contended(_)) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
    });
    futures::future::join_all(executors).await;
    world.run().await;
    let [first, second] = [world.look(replays[0].id).await, world.look(replays[1].id).await];
    assert_eq!((first.status, second.status), (Status::Finished, Status::Finished));
    assert_eq!(first.replayed + second.replayed, 80, "each letter came back once");
    assert_eq!(first.skipped.not_dead_lettered + second.skipped.not_dead_lettered, 80);
    assert_eq!(world.count(OPEN).await, 80);
}

#[tokio::test]
async fn a_letter_that_a_person_is_sending_again_holds_up_its_batch_for_a_moment_and_is_skipped_then() {
    let mut world = World::with_letters(1).await;
    let warehouse = Filter { endpoint: Some(world.history.warehouse.name.clone()), ..Filter::default() };
    let replay = world.preview(&warehouse).await;
    world.execute(replay.id).await.expect("executed");
    let mut connection = world.history.pool().acquire().await.expect("a connection");
    let letter: uuid::Uuid = sqlx::query_scalar("SELECT delivery_id FROM postrider.replay_items")
        .fetch_one(&mut *connection)
        .await
        .expect("the letter");
    let mut person = edit::begin(world.history.pool()).await.expect("a transaction begins");
    retry::retry(&mut person, world.history.tenant.id, letter.into()).await.expect("retried");

    let step = replay::next(&mut world.lane, world.history.tenant.id).await.expect("a look");
    let step = step.expect("a turn");
    let held_up = step.turn;
    let waited = step.advance(Audience::Nobody, all).await;
    assert!(matches!(waited, Err(Error::Contended(_))), "{waited:?}");
    replay::postpone(&mut world.lane, held_up, NO_REST).await.expect("put off");
    assert_eq!(world.look(replay.id).await.skipped.total(), 0, "nothing was counted");
    person.commit().await.expect("commit");
    world.run().await;
    let shown = world.look(replay.id).await;
    assert_eq!((shown.replayed, shown.skipped.not_dead_lettered), (0, 1));
}

/// Those who store a busy tenant's events keep what it has used locked, one after the other: a turn stands in line for it.
#[tokio::test]
async fn a_turn_waits_for_what_its_tenant_has_used_longer_than_other_work_does() {
    let mut world = World::with_letters(1).await;
    let tenant_id = world.history.tenant.id.as_uuid();
    world.running().await;
    let pool = world.history.pool().clone();
    let note = "INSERT INTO postrider.tenant_usage (tenant_id) VALUES ($1)
                    ON CONFLICT (tenant_id) DO UPDATE SET open_at_most = 1";
    sqlx::query(note).bind(tenant_id).execute(&pool).await.expect("the tenant has quotas");
    let mut ingest = edit::begin(&pool).await.expect("a transaction begins");
    sqlx::query(note).bind(tenant_id).execute(&mut *ingest).await.expect("an event is counted");
    let committing = async {
        let waits = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND wait_event_type = 'Lock'
                        AND clock_timestamp() - query_start > interval '300 milliseconds'";
        while sqlx::query_scalar::<_, i64>(waits).fetch_one(&pool).await.expect("a look") == 0 {
            tokio::task::yield_now().await;
        }
        ingest.commit().await.expect("commit");
    };
    let (advanced, ()) = tokio::join!(turn(&mut world.lane, &world.history, 100), committing);
    assert_eq!(advanced.expect("a turn was due").replayed, 1);
}

#[tokio::test]
async fn a_cancellation_waits_for_the_batch_that_is_under_way_and_counts_it() {
    let mut world = World::with_letters(3).await;
    let replay = world.running().await;
    let mut other = lanes::connect(&options(&world.history), Lane::Work).await.expect("a connection");
    let tenant_id = world.history.tenant.id;
    let step = replay::next(&mut world.lane, tenant_id).await.expect("a look").expect("a turn");
    let cancelling = async {
        let mut transaction = edit::begin(world.history.pool()).await.expect("a transaction begins");
        replay::cancel(&mut transaction, tenant_id, replay.id).await.expect("cancelled");
        transaction.commit().await.expect("commit");
    };
    let advancing = async {
        crate::races::wait_for_waiting(world.history.pool(), 1).await;
        step.advance(Audience::Nobody, |_| Portion { letters: 2, rest: NO_REST })
            .await
            .expect("the turn ends")
    };
    let ((), advanced) = tokio::join!(cancelling, advancing);
    assert_eq!(advanced.replayed, 2);
    assert!(turn(&mut other, &world.history, 100).await.is_none(), "the other endpoint has no turn any more");
    let shown = world.look(replay.id).await;
    assert_eq!((shown.status, shown.replayed), (Status::Cancelled, 2));
}

/// An executor must not write over what a person decided, nor the other way round.
#[tokio::test]
async fn of_an_end_and_a_cancellation_one_counts() {
    let mut world = World::with_letters(1).await;
    let replay = world.running().await;
    while world.turn(100).await.is_some() {}
    let mut person = edit::begin(world.history.pool()).await.expect("a transaction begins");
    replay::cancel(&mut person, world.history.tenant.id, replay.id).await.expect("cancelled");
    let finishing = replay::finish(&mut world.lane, 10);
    let committing = async {
        crate::races::wait_for_waiting(world.history.pool(), 1).await;
        person.commit().await.expect("commit");
    };
    let (finished, ()) = tokio::join!(finishing, committing);
    assert_eq!(finished.expect("a look"), [], "it was over");
    assert_eq!(world.look(replay.id).await.status, Status::Cancelled);
}
