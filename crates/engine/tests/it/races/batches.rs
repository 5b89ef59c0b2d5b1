//! Many items in one batch, one of which is refused, or waits.

use std::sync::Arc;

use postrider_core::{
    event::KeySpace,
    token::{Kind, Token},
};
use postrider_store::{
    applications, edit,
    endpoints::{self, DisabledReason},
    ingest::{Accepted, NewEvent, Refusal, Submission},
    routing::Routing,
};
use postrider_testkit::{
    proxy::Proxy,
    running::{Options, Running, loopback_http},
    scenario::{Application, new_event, peppers},
    stall::Stall,
};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgTransaction};
use tokio::sync::oneshot;

use super::{DELIVERED, World, scripted::Scripted};

pub(super) type Answer = oneshot::Receiver<Result<Accepted, Refusal>>;

pub(super) async fn submit(engine: &Running, application: &Application, event: NewEvent) -> Answer {
    submit_under(engine, application.routing().await, event)
}

pub(super) fn submit_under(engine: &Running, routing: Arc<Routing>, event: NewEvent) -> Answer {
    let (reply, answer) = oneshot::channel();
    let submission = Submission { routing, event, reply };
    engine.entrance().try_send(submission).expect("there is room in the line");
    answer
}

pub(super) fn event(body: &'static str) -> NewEvent {
    new_event("order.created", body, None)
}

/// An edit of the application, not committed: keeps its events out.
async fn edit_of(world: &World, endpoint: &postrider_testkit::scenario::Endpoint) -> PgTransaction<'static> {
    let mut transaction = edit::begin(world.pool()).await.expect("a transaction begins");
    let reason = Some(DisabledReason::Requested);
    endpoints::set_disabled(&mut transaction, world.tenant.id, endpoint.id, reason).await.expect("edited");
    transaction
}

#[tokio::test]
async fn one_event_that_cannot_be_stored_does_not_refuse_its_neighbours() {
    let world = World::new().await;
    let (application, endpoint) = world.pair("orders").await;
    world.execute("ALTER TABLE postrider.events ADD CONSTRAINT no_poison CHECK (body <> 'poison')").await;
    let engine = world.start().await;
    // What comes while the first batch waits is the next one.
    let edit = edit_of(&world, &endpoint).await;
    let first = submit(&engine, &application, event("[0]")).await;
    world.wait_for_waiting(1).await;
    let mut answers = Vec::new();
    for body in ["[1]", "[2]", "poison", "[4]", "[5]"] {
        answers.push(submit(&engine, &application, event(body)).await);
    }
    edit.rollback().await.expect("given up");
    first.await.expect("answered").expect("accepted");
    for (place, answer) in answers.into_iter().enumerate() {
        let answer = answer.await.expect("answered");
        assert_eq!(answer.err(), (place == 2).then_some(Refusal::Unstorable), "{place}");
    }
    world.pass_until(DELIVERED, 5).await;
}

/// The events of one application wait for an edit that takes its time; those of another that come later do not.
#[tokio::test]
async fn events_that_wait_for_a_lock_step_aside() {
    let world = World::new().await;
    let (slow, edited) = world.pair("slow").await;
    let (quick, _) = world.pair("quick").await;
    let engine = world.start().await;
    let edit = edit_of(&world, &edited).await;
    let mut waiting = submit(&engine, &slow, event("[1]")).await;
    world.wait_for_waiting(1).await;
    let later = submit(&engine, &quick, event("[2]")).await;
    later.await.expect("answered").expect("accepted");
    assert!(waiting.try_recv().is_err(), "the other one still waits, in a lane of its own");
    edit.rollback().await.expect("given up");
    waiting.await.expect("answered").expect("accepted");
    world.pass_until(DELIVERED, 2).await;
}

/// An event that was in one batch with events of a locked application waits no longer than the batch did, whether the lock
/// is ever given or not.
#[tokio::test]
async fn events_that_shared_a_batch_with_locked_ones_are_stored_without_them() {
    let world = World::new().await;
    let (slow, edited) = world.pair("slow").await;
    let (quick, _) = world.pair("quick").await;
    let engine = world.start().await;
    let edit = edit_of(&world, &edited).await;
    let [slow, quick] = [slow.routing().await, quick.routing().await];
    let mut locked = submit_under(&engine, slow, event("[1]"));
    let neighbour = submit_under(&engine, quick, event("[2]"));
    neighbour.await.expect("answered").expect("accepted");
    assert!(locked.try_recv().is_err(), "the locked one goes on waiting");
    assert_eq!(locked.await.expect("answered"), Err(Refusal::Contended));
    edit.rollback().await.expect("given up");
}

/// Whoever publishes much to a locked application would otherwise hold up everybody again with each event.
#[tokio::test]
async fn a_locked_application_holds_up_the_others_once() {
    let world = World::new().await;
    let (slow, edited) = world.pair("slow").await;
    let (quick, _) = world.pair("quick").await;
    sqlx::raw_sql(
        "CREATE TABLE storing (pid integer);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
             BEGIN INSERT INTO public.storing VALUES (pg_backend_pid()); RETURN NULL; END $$;
         CREATE TRIGGER note AFTER INSERT ON postrider.events FOR EACH STATEMENT EXECUTE FUNCTION note()",
    )
    .execute(world.pool())
    .await
    .expect("a trigger");
    let engine = world.start().await;
    submit(&engine, &quick, event("[0]")).await.await.expect("answered").expect("accepted");
    let everybodys = only_session(&world, "pid IN (SELECT pid FROM storing)").await;
    let edit = edit_of(&world, &edited).await;
    let first = submit(&engine, &slow, event("[1]")).await;
    assert_eq!(first.await.expect("answered"), Err(Refusal::Contended));
    let locked = submit(&engine, &slow, event("[2]")).await;
    world.wait_for_waiting(1).await;
    let waiting = only_session(&world, "wait_event_type = 'Lock'").await;
    assert_ne!(waiting, everybodys, "it waits in the side lane from the start");
    submit(&engine, &quick, event("[3]")).await.await.expect("answered").expect("accepted");
    edit.rollback().await.expect("given up");
    locked.await.expect("answered").expect("accepted");
    world.pass_until(DELIVERED, 3).await;
}

/// The one session of which this is so, other than the one that asks.
async fn only_session(world: &World, is_so: &'static str) -> i32 {
    let query = format!(
        "SELECT pid FROM pg_stat_activity
          WHERE datname = current_database() AND pid <> pg_backend_pid() AND {is_so}"
    );
    let found: Vec<i32> = sqlx::query_scalar(AssertSqlSafe(query))
        .fetch_all(world.pool())
        .await
        .expect("the sessions are listed");
    assert_eq!(found.len(), 1, "{is_so}: {found:?}");
    found[0]
}

/// The copy that a publisher was let in by is out of date: its plan is made anew, and what the copy decided is asked again.
#[tokio::test]
async fn an_event_under_an_old_plan_is_planned_anew() {
    let world = World::new().await;
    let (application, endpoint) = world.pair("orders").await;
    let engine = world.start().await;
    let old = application.routing().await;
    endpoint.set_enabled(false).await;
    let accepted =
        submit_under(&engine, Arc::clone(&old), event("[1]")).await.expect("answered").expect("accepted");
    assert_eq!(accepted.deliveries, 0, "a disabled endpoint gets nothing");

    let other = peppers().hashes(&Token::mint(Kind::Publish, [9; 32]));
    let mut rotation = edit::begin(world.pool()).await.expect("a transaction begins");
    applications::rotate_token(&mut rotation, world.tenant.id, application.id, &other)
        .await
        .expect("the token is replaced");
    rotation.commit().await.expect("committed");
    let refused = submit_under(&engine, old, event("[2]")).await;
    assert_eq!(refused.expect("answered"), Err(Refusal::Unauthorized));
}

/// So many deliveries to endpoints of their own, all of whose requests are answered at one moment.
async fn in_flight(world: &World, transport: &Scripted, count: usize) -> Running {
    let engine = world.start_with(transport.clone(), Options::default()).await;
    for number in 0..count {
        let (application, _) = world.pair(&format!("number-{number}")).await;
        engine.publish(&application, event("{}")).await.expect("accepted");
    }
    transport.asked(count).await;
    engine
}

#[tokio::test]
async fn one_result_that_cannot_be_written_does_not_lose_its_neighbours() {
    let world = World::new().await;
    let transport = Scripted::answering(|request| {
        if request.destination.path_and_query().as_str() == "/number-3" { 418 } else { 200 }
    });
    let _engine = in_flight(&world, &transport, 8).await;
    world
        .execute("ALTER TABLE postrider.attempts ADD CONSTRAINT no_teapots CHECK (status_code <> 418)")
        .await;
    transport.open();
    world.wait_until(DELIVERED, 7).await;
    assert_eq!(world.count("SELECT count(*) FROM postrider.attempts").await, 7);
    assert_eq!(world.count("SELECT count(*) FROM postrider.delivery_queue").await, 1);
}

#[tokio::test]
async fn a_locked_delivery_holds_up_no_result_but_its_own() {
    let world = World::new().await;
    let transport = Scripted::answering(|_| 200);
    let _engine = in_flight(&world, &transport, 8).await;
    let mut obstacle = world.pool().begin().await.expect("a transaction begins");
    let locked = "SELECT FROM postrider.delivery_queue WHERE delivery_id =
        (SELECT delivery_id FROM postrider.delivery_queue ORDER BY delivery_id OFFSET 3 LIMIT 1) FOR UPDATE";
    sqlx::query(locked).execute(&mut *obstacle).await.expect("locked");
    transport.open();
    world.wait_until(DELIVERED, 7).await;
    obstacle.rollback().await.expect("unlocked");
    world.pass_until(DELIVERED, 8).await;
    assert_eq!(world.count("SELECT count(*) FROM postrider.attempts").await, 8, "each was sent once");
}

/// A process is stopped while it stores a batch: what it has locked is free again when the server ends its session. Here
/// the session is ended by the test; that the lanes ask the server for it is proven where they are opened.
#[tokio::test]
async fn the_key_of_a_batch_that_never_ends_is_free_once_its_session_is() {
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    let mut frozen = PgConnection::connect(world.database.url()).await.expect("a connection");
    sqlx::raw_sql("BEGIN").execute(&mut frozen).await.expect("begun");
    sqlx::query(
        "INSERT INTO postrider.idempotency_keys
                (application_id, key_space, idempotency_key, fingerprint, event_id, delivery_count, accepted_at)
         SELECT application_id, $1, 'order-42', '', gen_random_uuid(), 1, now() FROM postrider.applications
          WHERE name = 'orders'",
    )
    .bind(KeySpace::Events.number())
    .execute(&mut frozen)
    .await
    .expect("the key is taken");
    let engine = world.start().await;
    let answer = submit(&engine, &application, new_event("order.created", "{}", Some("order-42"))).await;
    world.wait_for_waiting(1).await;
    let ended: bool = sqlx::query_scalar(
        "SELECT bool_and(pg_terminate_backend(pid)) FROM pg_stat_activity
          WHERE datname = current_database() AND state = 'idle in transaction'",
    )
    .fetch_one(world.pool())
    .await
    .expect("the session can be ended");
    assert!(ended);
    let accepted = answer.await.expect("answered").expect("accepted");
    assert!(!accepted.duplicate, "the frozen one stored nothing");
}

/// The key is there when it is inserted and gone when its owner is looked up: it is free, and the event is stored.
#[tokio::test]
async fn a_key_that_vanishes_between_two_looks_is_free_again() {
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    let engine = world.start().await;
    let publish =
        async || engine.publish(&application, new_event("order.created", "{}", Some("order-42"))).await;
    let first = publish().await.expect("accepted");
    let looked = "AFTER INSERT ON postrider.idempotency_keys FOR EACH STATEMENT";
    let stall = Stall::when(&world.database, looked, "true").await;
    let (second, ()) = tokio::join!(publish(), async {
        world.wait_for_waiting(1).await;
        world.execute("DELETE FROM postrider.idempotency_keys").await;
        stall.end().await;
    });
    let second = second.expect("accepted");
    assert!(!second.duplicate && second.event_id != first.event_id, "{second:?}");
}

/// The connection was lost while nothing was to be stored, as when the database was restarted.
#[tokio::test]
async fn the_first_event_after_an_idle_time_does_not_go_down_with_a_dead_connection() {
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    let proxy = Proxy::before(world.database.url()).await;
    let direct_url = Some(proxy.url(world.database.url()));
    let engine = world.start_with(loopback_http(), Options { direct_url, ..Options::default() }).await;
    submit(&engine, &application, event("[1]")).await.await.expect("answered").expect("accepted");
    proxy.cut_all();
    world.clock.advance(std::time::Duration::from_secs(1));
    submit(&engine, &application, event("[2]")).await.await.expect("answered").expect("accepted");
}
