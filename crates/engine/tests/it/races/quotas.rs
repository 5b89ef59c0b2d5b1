//! Tenants with quotas, whose events processes store one after the other.

use std::sync::Arc;

use postrider_core::quota::Settings;
use postrider_store::{
    edit,
    ingest::{Accepted, Refusal},
    tenants,
};
use postrider_testkit::{
    proxy::{Fault, Proxy},
    running::{Options, Running, loopback_http},
    scenario::{Scenario, new_event},
    stall::Stall,
};

use super::{
    DELIVERED, STEP, World,
    batches::{event, submit, submit_under},
};

const EVENTS: &str = "SELECT count(*) FROM postrider.events";

fn hourly(events: u64) -> Settings {
    Settings { hourly_events: Some(events), ..Settings::default() }
}

/// Two engines, neither of which knows of the other.
#[tokio::test]
async fn of_two_hundred_publishes_at_the_last_place_exactly_one_is_accepted() {
    const QUOTA: u64 = 20;
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    world.tenant.limit(&hourly(QUOTA)).await;
    let engines = [Running::start(&world.database), Running::start(&world.database)];
    let routing = application.routing().await;
    for _ in 1..QUOTA {
        let answer = submit_under(&engines[0], Arc::clone(&routing), event("[1]"));
        answer.await.expect("answered").expect("within the quota");
    }
    // The one engine stands still with what it has counted, until the other has come to the same place.
    let stall = Stall::when(&world.database, "BEFORE INSERT ON postrider.events FOR EACH ROW", "true").await;
    let answers: Vec<_> = engines
        .iter()
        .cycle()
        .take(200)
        .map(|engine| submit_under(engine, Arc::clone(&routing), event("[2]")))
        .collect();
    world.wait_for_waiting(2).await;
    stall.end().await;
    let mut accepted = 0;
    for answer in answers {
        match answer.await.expect("answered") {
            Ok(_) => accepted += 1,
            Err(refusal) => assert!(matches!(refusal, Refusal::OverQuota(_)), "{refusal:?}"),
        }
    }
    assert_eq!(accepted, 1);
    world.wait_until(DELIVERED, 20).await;
    for engine in engines {
        engine.drain().await;
    }
    assert_eq!((world.count(EVENTS).await, world.count(DELIVERED).await), (20, 20));
}

/// Somebody holds what one tenant has used. Others go on: those without quotas in a lane of their own, those with quotas
/// once that one has stepped aside.
#[tokio::test]
async fn a_tenant_whose_row_is_held_holds_up_no_other() {
    let world = World::new().await;
    let (slow, _) = world.pair("slow").await;
    world.tenant.limit(&hourly(10)).await;
    let others = Scenario::new(world.pool().clone());
    let (metered, free) = (others.tenant("globex").await, others.tenant("initech").await);
    metered.limit(&hourly(10)).await;
    let [metered, free] = [metered.application("orders").await, free.application("orders").await];
    let engine = world.start().await;
    let mut held = edit::begin(world.pool()).await.expect("a transaction begins");
    tenants::lock_limits(&mut held, world.tenant.id).await.expect("locked");
    let waiting = submit(&engine, &slow, event("[1]")).await;
    world.wait_for_waiting(1).await;
    submit(&engine, &free, event("[2]")).await.await.expect("answered").expect("accepted");
    submit(&engine, &metered, event("[3]")).await.await.expect("answered").expect("accepted");
    held.rollback().await.expect("given up");
    waiting.await.expect("answered").expect("accepted");
    engine.drain().await;
}

/// Gives the tenant more open deliveries than are counted while others wait, and a quota that has room for them.
async fn fill(world: &World) -> Settings {
    sqlx::query(
        "INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id,
                signing_key_id, accepted_at, deadline_at, state, due_at, attempt_number, tries)
         SELECT $1, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), now(),
                now() + interval '1 day', 'scheduled', now() + interval '1 day', 1, 1 FROM generate_series(1, 6000)",
    )
    .bind(world.tenant.id.as_uuid())
    .execute(world.pool())
    .await
    .expect("rows are queued");
    let quotas = Settings { open_deliveries: Some(10_000), ..Settings::default() };
    world.tenant.limit(&quotas).await;
    quotas
}

/// It has more open than is counted while others wait. Until that is counted apart it is told so, and the others go on.
#[tokio::test]
async fn a_tenant_that_has_to_be_counted_holds_up_no_other_and_is_let_in_soon() {
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    let quotas = fill(&world).await;
    let other = Scenario::new(world.pool().clone()).tenant("globex").await;
    other.limit(&quotas).await;
    let other = other.application("orders").await;
    let engine = world.start().await;

    let answer = submit(&engine, &application, event("[1]")).await.await.expect("answered");
    assert_eq!(answer, Err(Refusal::Uncounted));
    submit(&engine, &other, event("[2]")).await.await.expect("answered").expect("accepted");
    loop {
        match submit(&engine, &application, event("[3]")).await.await.expect("answered") {
            Ok(_) => break,
            Err(refusal) => assert_eq!(refusal, Refusal::Uncounted),
        }
    }
    engine.drain().await;
}

/// Each of its events would ask for the count again, at once.
#[tokio::test]
async fn a_count_that_failed_is_repeated_after_a_pause_however_many_events_ask_for_it() {
    const TRIES: &str = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tries";
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    fill(&world).await;
    // A sequence goes on although the statement is undone.
    sqlx::raw_sql(
        "CREATE SEQUENCE tries;
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
             BEGIN PERFORM nextval('public.tries'); RAISE EXCEPTION 'not now'; END $$;
         CREATE TRIGGER fail BEFORE UPDATE OF open_at_most ON postrider.tenant_usage EXECUTE FUNCTION fail()",
    )
    .execute(world.pool())
    .await
    .expect("a trigger");
    let engine = world.start().await;
    let refused = async || submit(&engine, &application, event("[1]")).await.await.expect("answered");
    for tries in 1..=3 {
        while world.count(TRIES).await < tries {
            assert_eq!(refused().await, Err(Refusal::Uncounted));
            world.clock.advance(STEP);
        }
        // No time passes now.
        for _ in 0..20 {
            assert_eq!(refused().await, Err(Refusal::Uncounted));
        }
        assert_eq!(world.count(TRIES).await, tries, "it pauses");
    }
    sqlx::raw_sql("DROP TRIGGER fail ON postrider.tenant_usage").execute(world.pool()).await.expect("mended");
    while let Err(refusal) = refused().await {
        assert_eq!(refusal, Refusal::Uncounted);
        world.clock.advance(STEP);
    }
    engine.drain().await;
}

/// It is not known whether it was stored; a repeat settles that, and costs nothing.
#[tokio::test]
async fn a_commit_whose_answer_is_lost_counts_once() {
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    world.tenant.limit(&hourly(2)).await;
    let proxy = Proxy::before(world.database.url()).await;
    let direct_url = Some(proxy.url(world.database.url()));
    let engine = world.start_with(loopback_http(), Options { direct_url, ..Options::default() }).await;
    let keyed = || new_event("order.created", "{}", Some("one"));
    proxy.set("COMMIT", Fault::SwallowReply);
    let answer = submit(&engine, &application, keyed()).await.await.expect("answered");
    assert_eq!(answer, Err(Refusal::Unknown));
    assert_eq!(world.count(EVENTS).await, 1, "it was stored");
    let answer = submit(&engine, &application, keyed()).await.await.expect("answered");
    assert!(matches!(answer, Ok(Accepted { duplicate: true, .. })), "{answer:?}");
    submit(&engine, &application, event("[2]")).await.await.expect("answered").expect("one is left");
    let answer = submit(&engine, &application, event("[3]")).await.await.expect("answered");
    assert!(matches!(answer, Err(Refusal::OverQuota(_))), "{answer:?}");
    engine.drain().await;
}

/// The plan in a publisher's hand may be from before its tenant had quotas.
#[tokio::test]
async fn quotas_that_are_news_to_everybodys_lane_hold_there() {
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    let engine = world.start().await;
    let before = application.routing().await;
    submit_under(&engine, Arc::clone(&before), event("[1]")).await.expect("answered").expect("accepted");
    world.tenant.limit(&hourly(1)).await;
    let answers = [(); 2].map(|()| submit_under(&engine, Arc::clone(&before), event("[2]")));
    let [first, second] = answers;
    first.await.expect("answered").expect("what was stored before there were quotas is not counted");
    assert!(matches!(second.await.expect("answered"), Err(Refusal::OverQuota(_))));
    world.pass_until(DELIVERED, 2).await;
    engine.drain().await;
}
