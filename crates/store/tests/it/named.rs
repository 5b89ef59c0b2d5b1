//! Taking what a message names: the row decides, whatever the message says.

use postrider_core::{id::LeaseToken, queue::Pointer};
use postrider_store::{
    hold,
    lanes::{self, Lane},
    take::{self, Named},
};
use sqlx::Connection as _;
use uuid::Uuid;

use crate::{
    hot_path::{HOUR, World, scheduled, world},
    plans::{EMPTY, FILL, assert_no_table_is_read_whole},
};

const NONE: [usize; 0] = [];

/// Publishes one event, and names its delivery as it is then.
async fn publish(world: &World) -> Pointer {
    let published = world.application.publish("order.created", "{}").await;
    Pointer {
        tenant_id: world.tenant.id,
        endpoint_id: world.endpoint.id,
        delivery_id: published.deliveries[0],
        attempt_number: 0,
    }
}

async fn take(world: &mut World, pointers: &[Pointer]) -> Named {
    let lease =
        take::Lease { owner: world.me, token: LeaseToken::from_uuid(Uuid::now_v7()), hard_limit: HOUR };
    take::take_named(&mut world.lane, pointers, lease).await.expect("the queue can be read")
}

/// The places of those that were claimed.
async fn places(world: &mut World, pointers: &[Pointer]) -> Vec<usize> {
    let Named { claimed, early } = take(world, pointers).await;
    assert!(early.is_empty(), "{early:?}");
    let mut places: Vec<usize> = claimed.iter().map(|(place, _)| *place).collect();
    places.sort_unstable();
    places
}

async fn change(world: &World, statement: &'static str) {
    sqlx::query(statement).execute(world.database.pool()).await.expect("the row changes");
}

#[tokio::test]
async fn a_delivery_is_claimed_once_and_only_at_the_attempt_that_is_named() {
    let mut world = world().await;
    let first = publish(&world).await;
    let (second, nowhere) = (publish(&world).await, Uuid::now_v7());
    let stale = [
        Pointer { attempt_number: 1, ..first },
        Pointer { attempt_number: u32::MAX, ..first },
        Pointer { delivery_id: nowhere.into(), ..first },
        Pointer { tenant_id: nowhere.into(), ..first },
    ];
    assert_eq!(places(&mut world, &stale).await, NONE);
    let Named { claimed, .. } = take(&mut world, &[second, first]).await;
    assert_eq!(claimed.len(), 2);
    for (place, row) in claimed {
        let run = row.delivery.run;
        assert_eq!(run.id, [second, first][place].delivery_id);
        assert_eq!((run.attempt_number, run.tries), (1, 1));
        assert!(row.content.is_some());
    }
    // It is on its way, whichever attempt a message names.
    for attempt_number in 0..3 {
        assert_eq!(places(&mut world, &[Pointer { attempt_number, ..first }]).await, NONE);
    }
}

#[tokio::test]
async fn what_one_request_names_twice_is_claimed_once() {
    let mut world = world().await;
    let (one, other) = (publish(&world).await, publish(&world).await);
    let Named { claimed, .. } = take(&mut world, &[one, other, one, one]).await;
    let mut deliveries: Vec<_> = claimed.iter().map(|(_, row)| row.delivery.run.id).collect();
    deliveries.sort_unstable();
    assert_eq!(deliveries, [one.delivery_id, other.delivery_id]);
    assert!(claimed.iter().all(|(_, row)| row.delivery.run.tries == 1));
}

#[tokio::test]
async fn what_is_not_due_stays_and_is_told_how_long_it_waits() {
    let mut world = world().await;
    let pointer = publish(&world).await;
    let Named { claimed, .. } = take(&mut world, &[pointer]).await;
    world.settle(&[scheduled(&claimed[0].1, HOUR)]).await;
    assert_eq!(places(&mut world, &[pointer]).await, NONE, "an attempt before");
    let next = Pointer { attempt_number: 1, ..pointer };
    let Named { claimed, early } = take(&mut world, &[next]).await;
    assert!(claimed.is_empty());
    let [(0, wait)] = early[..] else { panic!("{early:?}") };
    assert!((HOUR.mul_f64(0.9)..=HOUR).contains(&wait), "{wait:?}");
    assert_eq!(world.states().await, ["scheduled"]);
    change(&world, "UPDATE postrider.delivery_queue SET due_at = now()").await;
    assert_eq!(places(&mut world, &[next]).await, [0]);
}

#[tokio::test]
async fn a_disabled_endpoint_and_a_deadline_that_has_passed_are_left_to_others() {
    let mut world = world().await;
    let pointer = publish(&world).await;
    world.endpoint.set_enabled(false).await;
    assert_eq!(places(&mut world, &[pointer]).await, NONE, "not held yet");
    hold::hold(&mut world.lane, 100).await.expect("holding runs");
    assert_eq!(world.states().await, ["held"]);
    change(&world, "UPDATE postrider.endpoints SET enabled = true, disabled_reason = NULL").await;
    assert_eq!(places(&mut world, &[pointer]).await, NONE, "held, and not released yet");
    hold::release(&mut world.lane, 100).await.expect("releasing runs");
    change(&world, "UPDATE postrider.delivery_queue SET deadline_at = now()").await;
    assert_eq!(places(&mut world, &[pointer]).await, NONE, "its deadline has passed");
    change(&world, "UPDATE postrider.delivery_queue SET deadline_at = now() + interval '1 h'").await;
    assert_eq!(places(&mut world, &[pointer]).await, [0]);
}

#[tokio::test]
async fn a_row_that_another_has_in_hand_is_passed_over() {
    let mut world = world().await;
    let (locked, free) = (publish(&world).await, publish(&world).await);
    let options = world.database.url().parse().expect("a database URL");
    let mut other = lanes::connect(&options, Lane::Work).await.expect("a connection");
    let mut claiming = other.begin().await.expect("a transaction begins");
    sqlx::query("SELECT 1 FROM postrider.delivery_queue WHERE delivery_id = $1 FOR UPDATE")
        .bind(locked.delivery_id.as_uuid())
        .execute(&mut *claiming)
        .await
        .expect("the row is locked");
    assert_eq!(places(&mut world, &[locked, free]).await, [1]);
    claiming.rollback().await.expect("it is let go");
    assert_eq!(places(&mut world, &[locked, free]).await, [0]);
}

#[tokio::test]
async fn taking_what_is_named_reads_each_row_by_its_key() {
    let mut world = world().await;
    let options = world.database.url().parse().expect("a database URL");
    let mut administration = lanes::connect(&options, Lane::Background).await.expect("a connection");
    publish(&world).await;
    for (change, when) in [
        ("SELECT 1", "empty"),
        (FILL, "full, not analysed"),
        ("ANALYZE", "full"),
        (EMPTY, "bloated"),
        ("ANALYZE", "bloated and analysed"),
        ("VACUUM postrider.delivery_queue", "vacuumed while empty"),
        ("REINDEX TABLE postrider.delivery_queue", "vacuumed and rebuilt while empty"),
    ] {
        sqlx::raw_sql(change).execute(&mut administration).await.expect("the tables change");
        world.lane = lanes::connect(&options, Lane::Work).await.expect("a connection");
        let named = [publish(&world).await, publish(&world).await];
        assert_eq!(places(&mut world, &named).await, [0, 1]);
        assert_no_table_is_read_whole(&mut world.lane, 1, when).await;
        publish(&world).await;
    }
}
