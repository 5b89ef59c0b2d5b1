//! Broker epochs: who begins one, and what is announced in it.

use std::collections::BTreeMap;

use postrider_core::queue::{self, Pointer};
use postrider_store::broker_epoch::{begin, current, sweep};
use sqlx::Connection as _;
use uuid::Uuid;

use crate::hot_path::{HOUR, World, delivered, scheduled, world};

/// What the outbox names, by where it goes.
async fn announced(world: &World) -> BTreeMap<String, Vec<Pointer>> {
    let rows: Vec<(String, Vec<u8>)> =
        sqlx::query_as("SELECT route, payload FROM postrider.outbox ORDER BY outbox_id")
            .fetch_all(world.database.pool())
            .await
            .expect("the outbox can be read");
    let mut announced = BTreeMap::<String, Vec<Pointer>>::new();
    for (route, payload) in rows {
        announced.entry(route).or_default().extend(queue::read(&payload).expect("a message"));
    }
    announced
}

#[tokio::test]
async fn of_those_who_see_the_same_loss_one_begins_an_epoch() {
    let mut world = world().await;
    let [first, second, third] = [(); 3].map(|()| Uuid::now_v7());
    assert_eq!(current(&mut world.lane).await.expect("a look"), None);
    for (known, next, newest) in [
        (None, first, first),
        (None, second, first),
        (Some(first), second, second),
        (Some(first), third, second),
    ] {
        assert_eq!(begin(&mut world.lane, known, next).await.expect("it is known then"), newest);
        assert_eq!(current(&mut world.lane).await.expect("a look"), Some(newest));
    }
}

#[tokio::test]
async fn each_delivery_that_waits_is_announced_once_in_portions() {
    let mut world = world().await;
    for _ in 0..7 {
        world.application.publish("order.created", "{}").await;
    }
    let claimed = world.take(3).await;
    world.settle(&[delivered(&claimed[0]), scheduled(&claimed[1], HOUR)]).await;
    // Four are pending, one is on its way, one waits for an hour, and one has ended.
    begin(&mut world.lane, None, Uuid::now_v7()).await.expect("an epoch");
    let later = world.application.publish("order.created", "{}").await;

    let mut other = world.database.pool().acquire().await.expect("a connection");
    let mut busy = other.begin().await.expect("a transaction begins");
    sqlx::query("SELECT 1 FROM postrider.broker FOR UPDATE").execute(&mut *busy).await.expect("it is held");
    assert_eq!(sweep(&mut world.lane, 4).await.expect("a look"), None, "another one is at it");
    busy.rollback().await.expect("it ends");

    let mut portions = Vec::new();
    while let Some(count) = sweep(&mut world.lane, 4).await.expect("a portion") {
        portions.push(count);
    }
    assert_eq!((portions.iter().sum::<usize>(), portions.len()), (5, 2), "{portions:?}");
    let announced = announced(&world).await;
    let waiting = &announced["postrider.retry.1h"];
    assert_eq!(waiting.len(), 1);
    assert_eq!((waiting[0].delivery_id, waiting[0].attempt_number), (claimed[1].delivery.run.id, 1));
    let ready = &announced["postrider.ready"];
    assert_eq!((ready.len(), announced.len()), (4, 2));
    let mut ids: Vec<_> = ready.iter().map(|pointer| pointer.delivery_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4);
    assert!(!ids.contains(&later.deliveries[0]), "what came later has its own message");
    assert!(claimed.iter().all(|claimed| !ids.contains(&claimed.delivery.run.id)));

    // When its queues are lost once more, all are announced once more, with the one that came later.
    let epoch = current(&mut world.lane).await.expect("a look");
    begin(&mut world.lane, epoch, Uuid::now_v7()).await.expect("another epoch");
    let mut again = 0;
    while let Some(count) = sweep(&mut world.lane, 4).await.expect("a portion") {
        again += count;
    }
    assert_eq!(again, 6);
}
