//! What an execution brings back, and how far it is when it is interrupted.

use postrider_store::{
    deliveries::{self, State},
    edit, hold, replay,
    replay::{Filter, Skipped, Status},
    retry,
};
use time::Duration;

use super::{OPEN, World};

/// Ends of a delivery that is open again, after another attempt and without one.
const DELIVERED: &str = "
    WITH ended AS (DELETE FROM postrider.delivery_queue WHERE delivery_id = $1 RETURNING *)
    INSERT INTO postrider.deliveries SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
           signing_key_id, accepted_at, now(), 'delivered', NULL, attempt_number + 1 FROM ended";
const DIED: &str = "
    WITH ended AS (DELETE FROM postrider.delivery_queue WHERE delivery_id = $1 RETURNING *)
    INSERT INTO postrider.deliveries SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
           signing_key_id, accepted_at, now(), 'dead_lettered', 'rejected', attempt_number + 1 FROM ended";
const GIVEN_UP: &str = "
    WITH ended AS (DELETE FROM postrider.delivery_queue WHERE delivery_id = $1 RETURNING *)
    INSERT INTO postrider.deliveries SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id,
           signing_key_id, accepted_at, now(), 'dead_lettered', 'deadline_passed', attempt_number FROM ended";

/// One letter for each thing that may happen to it after the preview.
#[tokio::test]
async fn exactly_the_letters_that_are_as_they_were_seen_come_back() {
    let mut world = World::with_letters(4).await;
    let replay = world.running().await;
    let letters = world.letters.clone();
    let [untouched, open, delivered, died, expired, erased, ..] = letters.as_slice() else {
        panic!("{letters:?}")
    };
    for id in [open, delivered, died, expired] {
        let mut transaction = edit::begin(world.history.pool()).await.expect("a transaction begins");
        retry::retry(&mut transaction, world.history.tenant.id, *id).await.expect("retried by hand");
        transaction.commit().await.expect("commit");
    }
    world.change(DELIVERED, *delivered).await;
    world.change(DIED, *died).await;
    // Held, say, and given up: never sent, and yet its end is another one.
    world.change(GIVEN_UP, *expired).await;
    let erase =
        sqlx::query("DELETE FROM postrider.events WHERE event_id = $1").bind(erased.event().as_uuid());
    erase.execute(world.history.pool()).await.expect("erased");
    let too_late = world.die("order.created").await;

    world.run().await;
    let replay = world.look(replay.id).await;
    assert_eq!((replay.status, replay.matches), (Status::Finished, 8));
    let skipped = Skipped { not_dead_lettered: 2, died_again: 2, body_gone: 1, ..Skipped::default() };
    assert_eq!(replay.skipped, skipped);
    assert_eq!(replay.replayed + replay.skipped.total(), replay.matches);
    let state = async |id| {
        let mut connection = world.history.pool().acquire().await.expect("a connection");
        let found = deliveries::get(&mut connection, world.history.tenant.id, id).await.expect("read");
        found.expect("it exists").state
    };
    assert!(matches!(state(*untouched).await, State::Pending { .. }));
    for id in too_late {
        assert!(matches!(state(id).await, State::DeadLettered { .. }), "it died after the preview");
    }
    for id in [died, expired, erased] {
        assert!(matches!(state(*id).await, State::DeadLettered { .. }));
    }
}

#[tokio::test]
async fn a_letter_begins_anew_and_its_numbering_goes_on() {
    let mut world = World::with_letters(1).await;
    world.history.warehouse.set_enabled(false).await;
    world.running().await;
    world.run().await;
    let rows: Vec<(String, i32, i32, bool, time::OffsetDateTime, Option<time::OffsetDateTime>)> =
        sqlx::query_as(
            "SELECT state, attempt_number, tries, replay_id IS NOT NULL, deadline_at, pending_since
           FROM postrider.delivery_queue ORDER BY state",
        )
        .fetch_all(world.history.pool())
        .await
        .expect("the rows");
    let [(held, ..), (pending, number, tries, is_marked, deadline, since)] = rows.as_slice() else {
        panic!("{rows:?}")
    };
    assert_eq!((held.as_str(), pending.as_str()), ("held", "pending"), "one endpoint is disabled");
    assert_eq!((*number, *tries, *is_marked), (2, 0, true));
    assert_eq!(*deadline - since.expect("pending"), Duration::hours(24));
    world.history.warehouse.set_enabled(true).await;
    assert_eq!(hold::release(&mut world.lane, 10).await.expect("released").len(), 1);
}

#[tokio::test]
async fn turns_are_bounded_and_one_that_does_not_end_changes_nothing() {
    let mut world = World::with_letters(5).await;
    let replay = world.running().await;
    let first = world.turn(2).await.expect("a turn");
    assert_eq!((first.replayed, first.left), (2, 3));
    // A process that dies in the middle of its turn: its transaction ends with it.
    drop(replay::next(&mut world.lane, world.history.tenant.id).await.expect("a look").expect("a turn"));
    assert_eq!(world.count(OPEN).await, 2);
    let shown = world.look(replay.id).await;
    assert_eq!((shown.status, shown.replayed), (Status::Running, 2), "progress is shown while it runs");
    // The other endpoint waits for its turn all the while.
    let second = world.turn(2).await.expect("a turn");
    assert_ne!(first.endpoint_id, second.endpoint_id);
    world.run().await;
    let shown = world.look(replay.id).await;
    assert_eq!((shown.status, shown.replayed, world.count(OPEN).await), (Status::Finished, 10, 10));
}

#[tokio::test]
async fn a_turn_without_room_is_put_off_and_does_not_end_the_replay() {
    let mut world = World::with_letters(1).await;
    let replay = world.running().await;
    for _ in 0..2 {
        let turn = world.turn(0).await.expect("a turn");
        assert_eq!((turn.replayed, turn.left), (0, 1));
    }
    assert_eq!(replay::finish(&mut world.lane, 10).await.expect("a look"), []);
    assert_eq!(world.look(replay.id).await.status, Status::Running);
}

#[tokio::test]
async fn letters_whose_endpoint_is_deleted_while_the_replay_runs_are_skipped_at_once() {
    let mut world = World::with_letters(5).await;
    let replay = world.running().await;
    sqlx::query(
        "UPDATE postrider.endpoints SET enabled = false, disabled_reason = 'requested', deleted_at = now()
          WHERE name = 'archive'",
    )
    .execute(world.history.pool())
    .await
    .expect("deleted");
    world.run().await;
    let shown = world.look(replay.id).await;
    assert_eq!((shown.replayed, shown.skipped.endpoint_deleted), (5, 5));
    assert_eq!(shown.status, Status::Finished);
}

#[tokio::test]
async fn an_empty_replay_ends_by_itself_and_its_end_is_recorded() {
    let mut world = World::with_letters(0).await;
    let replay = world.running().await;
    world.run().await;
    assert_eq!(world.look(replay.id).await.status, Status::Finished);
    let recorded: Vec<(String, String)> = sqlx::query_as(
        "SELECT actor_kind, target_id FROM postrider.audit_log WHERE action = 'replay.finished'",
    )
    .fetch_all(world.history.pool())
    .await
    .expect("the audit log");
    assert_eq!(recorded, [("process".to_owned(), replay.id.to_string())]);
}

#[tokio::test]
async fn tenants_are_found_one_after_the_other() {
    let mut world = World::with_letters(1).await;
    let mut expected = vec![world.history.tenant.id];
    world.running().await;
    for name in ["globex", "initech"] {
        let tenant = world.history.scenario().tenant(name).await;
        sqlx::query(
            "INSERT INTO postrider.replay_endpoints (tenant_id, replay_id, endpoint_id, items_left, due_at)
             SELECT $1, gen_random_uuid(), gen_random_uuid(), 1, now() FROM generate_series(1, 3)",
        )
        .bind(tenant.id.as_uuid())
        .execute(world.history.pool())
        .await
        .expect("turns");
        expected.push(tenant.id);
    }
    let find = async |lane: &mut _, after, limit| {
        replay::due_tenants(lane, after, limit).await.expect("tenants can be looked for")
    };
    expected.sort_unstable();
    assert_eq!(find(&mut world.lane, None, 10).await, expected);
    assert_eq!(find(&mut world.lane, None, 2).await, expected[..2]);
    assert_eq!(find(&mut world.lane, Some(expected[0]), 10).await, expected[1..]);
    assert_eq!(find(&mut world.lane, Some(expected[2]), 10).await, []);
}

#[tokio::test]
async fn what_a_cancelled_replay_brought_back_stays_and_the_rest_stays_dead() {
    let mut world = World::with_letters(4).await;
    let replay = world.running().await;
    world.turn(3).await.expect("a turn");
    world.cancel(replay.id).await.expect("cancelled");
    assert!(world.turn(100).await.is_none(), "no other begins");
    let shown = world.look(replay.id).await;
    assert_eq!((shown.status, shown.replayed, world.count(OPEN).await), (Status::Cancelled, 3, 3));
    assert_eq!(world.preview(&Filter::default()).await.matches, 5, "another replay finds them");
}
