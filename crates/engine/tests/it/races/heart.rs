//! A process that stood still, or that the others hold for dead.

use std::time::Duration;

use postrider_store::instances;
use postrider_testkit::{
    answer::{Answer, Gate},
    running::Options,
    scenario::new_event,
};
use uuid::Uuid;

use super::{World, scripted::Scripted};

async fn token(world: &World) -> Option<Uuid> {
    sqlx::query_scalar("SELECT lease_token FROM postrider.delivery_queue")
        .fetch_one(world.pool())
        .await
        .expect("one open delivery")
}

/// The process stands still between the claim and the request, for longer than others wait before they hold it for dead.
#[tokio::test]
async fn a_request_that_would_go_out_long_after_its_claim_is_not_sent_under_it() {
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    let gate = Gate::default();
    world.receiver.queue([Answer::ok().after(&gate)]);
    let engine = world.start().await;
    // The key cannot be read, so the delivery waits in the middle of its preparation.
    let mut obstacle = world.pool().begin().await.expect("a transaction begins");
    sqlx::query("LOCK TABLE postrider.signing_keys IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *obstacle)
        .await
        .expect("locked");
    engine.publish(&application, new_event("order.created", "{}", None)).await.expect("accepted");
    world.wait_for_waiting(1).await;
    let first = token(&world).await.expect("it was handed off");
    world.clock.advance(Duration::from_secs(9));
    obstacle.rollback().await.expect("unlocked");

    let request = world.pass_until_received(1).await.remove(0);
    assert_ne!(token(&world).await, Some(first), "the old claim was given back, and a new one made");
    assert_eq!(request.header("postrider-attempt"), Some("1"), "nothing was sent before");
    gate.open();
}

#[tokio::test]
async fn what_was_in_hand_when_a_life_ended_is_dropped_at_once() {
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    let transport = Scripted::answering(|_| 200);
    let engine = world.start_with(transport.clone(), Options::default()).await;
    engine.publish(&application, new_event("order.created", "{}", None)).await.expect("accepted");
    transport.asked(1).await;
    let mut connection = world.pool().acquire().await.expect("a connection");
    let hearts = instances::hearts(&mut connection).await.expect("the hearts are listed");
    instances::declare_dead(&mut connection, &hearts).await.expect("declared");
    // A new life takes the delivery over; the old one is not heard of again.
    while transport.requests() < 2 {
        world.clock.advance(Duration::from_millis(50));
        world.count("SELECT count(*) FROM postrider.instances").await;
    }
    assert_eq!(transport.ended(), 1, "its request was given up before another was made");
}

/// Results cannot be written, nothing can be claimed, and every connection that requests share is taken.
#[tokio::test]
async fn the_heart_beats_while_everything_else_waits() {
    let world = World::new().await;
    let engine = world.start().await;
    let mut held = Vec::new();
    while let Some(connection) = world.pool().try_acquire() {
        held.push(connection);
    }
    while world.pool().size() < world.pool().options().get_max_connections() {
        held.push(world.pool().acquire().await.expect("a connection"));
    }
    let (mut obstacle, mut watching) = (held.pop().expect("ten of them"), held.pop().expect("ten of them"));
    sqlx::raw_sql("BEGIN; LOCK TABLE postrider.delivery_queue IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *obstacle)
        .await
        .expect("locked");
    let mut beats = async || -> i64 {
        sqlx::query_scalar("SELECT beats FROM postrider.instances")
            .fetch_one(&mut *watching)
            .await
            .expect("the heart can be read")
    };
    let before = beats().await;
    tokio::time::timeout(Duration::from_secs(10), async {
        while beats().await < before + 3 {
            world.clock.advance(Duration::from_millis(20));
        }
    })
    .await
    .expect("the heart needs none of what is taken");
    drop(engine);
}
