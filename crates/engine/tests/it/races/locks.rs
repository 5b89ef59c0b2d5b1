//! What events wait for in the side lane, and for how long: locked plans, locked tables, and a connection that is lost there.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    edit,
    endpoints::{self, DisabledReason},
    ingest::Refusal,
};
use postrider_testkit::{
    proxy::{Fault, Proxy},
    running::{Options, Running, loopback_http},
    scenario::Application,
};
use sqlx::PgTransaction;
use tokio::time::timeout;

use super::{
    World,
    batches::{Answer, event, submit, submit_under},
};

/// A lock wait in everybody's lane and one in the side lane, with room for a busy machine; less than two in the side lane,
/// each of which takes three seconds.
const ONE_WAIT: Duration = Duration::from_secs(5);
/// The limit of a lane that is stuck, by the engine's clock.
const LONGEST_SPELL: Duration = Duration::from_secs(6);
/// More than an application's share of the places, and several batches.
const MANY: usize = 4_000;
const EVENTS: &str = "SELECT count(*) FROM postrider.events";
/// Sessions that wait for a lock while another one was the last to ask whose plans are locked. The pattern does not match
/// itself.
const WAITING_ASIDE: &str = "
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND wait_event_type = 'Lock'
       AND EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                      AND query ~ 'WHERE NOT pg_try_advisory_xact_lock_share[d]')";

/// So many applications, in the order of their events, and an edit of all of them that is not committed.
async fn locked(world: &World, count: usize) -> (Vec<Application>, PgTransaction<'static>) {
    let mut applications = Vec::new();
    let mut edited = Vec::new();
    for number in 0..count {
        let (application, endpoint) = world.pair(&format!("number-{number}")).await;
        applications.push(application);
        edited.push(endpoint.id);
    }
    let mut edit = edit::begin(world.pool()).await.expect("a transaction begins");
    edited.sort_unstable();
    for endpoint in edited {
        let reason = Some(DisabledReason::Requested);
        endpoints::set_disabled(&mut edit, world.tenant.id, endpoint, reason).await.expect("edited");
    }
    (applications, edit)
}

/// A table that somebody alters.
async fn locked_table(world: &World) -> PgTransaction<'static> {
    let mut alteration = world.pool().begin().await.expect("a transaction begins");
    let lock = "LOCK TABLE postrider.events IN ACCESS EXCLUSIVE MODE";
    sqlx::query(lock).execute(&mut *alteration).await.expect("locked");
    alteration
}

/// An event of each, which are one batch: nothing is awaited between them.
async fn one_of_each(engine: &Running, applications: &[Application]) -> Vec<Answer> {
    let mut routings = Vec::new();
    for application in applications {
        routings.push(application.routing().await);
    }
    routings.into_iter().map(|routing| submit_under(engine, routing, event("[1]"))).collect()
}

async fn refusals(answers: Vec<Answer>) -> Vec<Option<Refusal>> {
    let mut refusals = Vec::new();
    for answer in answers {
        refusals.push(answer.await.expect("answered").err());
    }
    refusals
}

#[tokio::test]
async fn many_locked_applications_are_waited_for_together() {
    let world = World::new().await;
    let engine = world.start().await;
    let (applications, edit) = locked(&world, 12).await;
    let answers = one_of_each(&engine, &applications).await;
    let refusals = timeout(2 * ONE_WAIT, refusals(answers)).await.expect("one wait serves all");
    assert_eq!(refusals, [Some(Refusal::Contended); 12]);
    edit.rollback().await.expect("given up");
}

#[tokio::test]
async fn a_publisher_that_gives_up_while_another_is_waited_for_is_forgotten() {
    let world = World::new().await;
    let engine = world.start().await;
    let (applications, edit) = locked(&world, 2).await;
    let mut answers = one_of_each(&engine, &applications).await;
    world.wait_until(WAITING_ASIDE, 1).await;
    drop(answers.pop());
    edit.rollback().await.expect("given up");
    assert_eq!(refusals(answers).await, [None]);
    engine.drain().await;
    assert_eq!(world.count(EVENTS).await, 1);
}

#[tokio::test]
async fn all_that_a_locked_application_publishes_has_room_aside() {
    let world = World::new().await;
    let engine = world.start().await;
    let (applications, edit) = locked(&world, 1).await;
    let answers = submit_many(&engine, &applications[0]).await;
    world.wait_until(WAITING_ASIDE, 1).await;
    edit.rollback().await.expect("given up");
    let refusals = refusals(answers).await;
    assert_eq!(refusals.iter().filter(|refusal| refusal.is_none()).count(), MANY);
}

/// Many events come in many batches: each of them would wait anew.
async fn submit_many(engine: &Running, application: &Application) -> Vec<Answer> {
    let routing = application.routing().await;
    let submit = || submit_under(engine, Arc::clone(&routing), event("[1]"));
    std::iter::repeat_with(submit).take(MANY).collect()
}

#[tokio::test]
async fn what_stands_behind_a_locked_application_in_the_side_lane_waits_with_it() {
    let world = World::new().await;
    let engine = world.start().await;
    let (applications, edit) = locked(&world, 1).await;
    let answers = submit_many(&engine, &applications[0]).await;
    let refusals = timeout(2 * ONE_WAIT, refusals(answers)).await.expect("two waits serve all");
    assert!(refusals.iter().all(|refusal| *refusal == Some(Refusal::Contended)));
    edit.rollback().await.expect("given up");
    engine.drain().await;
}

#[tokio::test]
async fn what_stands_behind_a_batch_that_waits_for_a_table_is_turned_away_with_it() {
    let world = World::new().await;
    let engine = world.start().await;
    let (application, _) = world.pair("orders").await;
    let alteration = locked_table(&world).await;
    let answers = submit_many(&engine, &application).await;
    let time_passes = async {
        loop {
            // Something that takes a moment: the engine's clock runs several times as fast as the database's.
            world.count("SELECT count(*) FROM postrider.instances").await;
            world.clock.advance(Duration::from_millis(10));
        }
    };
    let refusals = tokio::select! {
        refusals = timeout(2 * ONE_WAIT, refusals(answers)) => refusals.expect("not batch after batch"),
        never = time_passes => never,
    };
    let count = |refusal| refusals.iter().filter(|found| **found == Some(refusal)).count();
    let (tried, untried) = (count(Refusal::Contended), count(Refusal::Overloaded));
    assert!(tried > 0 && untried > 0 && tried + untried == MANY, "{tried} and {untried}");
    alteration.rollback().await.expect("given up");
    submit(&engine, &application, event("[2]")).await.await.expect("answered").expect("accepted");
    engine.drain().await;
}

/// A table is locked, as by whoever alters it: nobody's plan is, so nobody is set aside for longer than that.
#[tokio::test]
async fn a_locked_table_is_waited_for_within_the_limit_and_blamed_on_no_application() {
    let world = World::new().await;
    let engine = world.start().await;
    let (applications, edit) = locked(&world, 3).await;
    edit.rollback().await.expect("given up");
    let alteration = locked_table(&world).await;
    let answers = one_of_each(&engine, &applications).await;
    world.wait_until(WAITING_ASIDE, 1).await;
    world.clock.advance(LONGEST_SPELL);
    let refusals = timeout(ONE_WAIT, refusals(answers)).await.expect("the others are not waited for");
    let untried = Some(Refusal::Overloaded);
    assert_eq!(refusals, [Some(Refusal::Contended), untried, untried]);

    alteration.rollback().await.expect("given up");
    for application in &applications {
        submit(&engine, application, event("[2]")).await.await.expect("answered").expect("accepted");
    }
    let asked_last = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND pid <> pg_backend_pid()
                         AND query ~ 'WHERE NOT pg_try_advisory_xact_lock_share[d]'";
    assert_eq!(world.count(asked_last).await, 1, "the side lane did so, and nothing came there since");
    engine.drain().await;
}

/// One is stored, the connection is lost with the next, and the last one was not sent.
#[tokio::test]
async fn what_was_not_sent_when_the_connection_was_lost_is_known_not_to_be_stored() {
    let world = World::new().await;
    let proxy = Proxy::before(world.database.url()).await;
    let direct_url = Some(proxy.url(world.database.url()));
    let engine = world.start_with(loopback_http(), Options { direct_url, ..Options::default() }).await;
    let (applications, edit) = locked(&world, 3).await;
    let answers = one_of_each(&engine, &applications).await;
    world.wait_until(WAITING_ASIDE, 1).await;
    proxy.set("INSERT INTO postrider.events", Fault::SwallowReply);
    edit.rollback().await.expect("given up");
    assert_eq!(refusals(answers).await, [None, Some(Refusal::Unknown), Some(Refusal::Unavailable)]);
    // With messages to a broker it is two statements in a transaction, which ends where the first has no answer.
    let stored = if world.database.broker_url().is_none() { 2 } else { 1 };
    assert_eq!(world.count(EVENTS).await, stored, "the unknown one");
}
