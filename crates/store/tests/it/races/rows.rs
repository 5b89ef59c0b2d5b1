//! Statements that lock several deliveries, met by others that have locked some of them.

use postrider_core::id::{DeliveryId, InstanceId};
use postrider_store::{
    expire, hold,
    lanes::Lane,
    outbox::Audience,
    promote,
    recover::{self, Dead, Recovered},
    settle::{self, Settlement},
    take::Claimed,
};
use postrider_testkit::stall::Stall;
use sqlx::{PgConnection, PgTransaction};

use super::{marked_lane, wait_for_waiting};
use crate::hot_path::{HOUR, World, delivered, scheduled, world};

async fn lock(world: &World, id: DeliveryId) -> Result<PgTransaction<'static>, sqlx::Error> {
    let mut transaction = world.database.pool().begin().await.expect("a transaction begins");
    sqlx::query("SELECT FROM postrider.delivery_queue WHERE delivery_id = $1 FOR UPDATE NOWAIT")
        .bind(id.as_uuid())
        .execute(&mut *transaction)
        .await?;
    Ok(transaction)
}

async fn recover(connection: &mut PgConnection, owner: InstanceId) -> Recovered {
    let dead = Dead {
        owners: &[owner],
        me: InstanceId::from_uuid(uuid::Uuid::nil()),
        known: &[],
        unknown_after: HOUR,
    };
    recover::recover(connection, &dead, Audience::Nobody, 100).await.expect("leases can be taken back")
}

async fn set(world: &World, change: &'static str) {
    sqlx::query(change).execute(world.database.pool()).await.expect("the rows are changed");
}

/// Two deliveries, the first of which somebody else has locked: each statement moves the second and waits for nobody.
#[tokio::test]
async fn whoever_moves_deliveries_passes_over_those_that_are_locked() {
    let mut world = world().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.extend(world.application.publish("order.created", "{}").await.deliveries);
    }
    let obstacle = lock(&world, ids[0]).await.expect("it is free");
    let taken = world.take(10).await;
    assert_eq!(taken.iter().map(|claimed| claimed.delivery.run.id).collect::<Vec<_>>(), ids[1..]);
    obstacle.commit().await.expect("unlocked");
    assert_eq!(world.take(10).await.len(), 1);

    let me = world.me;
    let obstacle = lock(&world, ids[0]).await.expect("it is free");
    assert_eq!(recover(&mut world.lane, me).await.again, 1);
    obstacle.commit().await.expect("unlocked");
    assert_eq!(recover(&mut world.lane, me).await.again, 1);

    set(
        &world,
        "UPDATE postrider.delivery_queue SET state = 'scheduled', pending_since = NULL, due_at = now()",
    )
    .await;
    let obstacle = lock(&world, ids[0]).await.expect("it is free");
    assert_eq!(
        promote::promote(&mut world.lane, std::time::Duration::ZERO, 10).await.expect("promotion runs").rows,
        1
    );
    obstacle.commit().await.expect("unlocked");
    assert_eq!(
        promote::promote(&mut world.lane, std::time::Duration::ZERO, 10).await.expect("promotion runs").rows,
        1
    );

    world.endpoint.set_enabled(false).await;
    let obstacle = lock(&world, ids[0]).await.expect("it is free");
    assert_eq!(hold::hold(&mut world.lane, 10).await.expect("holding runs"), 1);
    obstacle.commit().await.expect("unlocked");
    assert_eq!(hold::hold(&mut world.lane, 10).await.expect("holding runs"), 1);

    world.endpoint.set_enabled(true).await;
    let obstacle = lock(&world, ids[0]).await.expect("it is free");
    assert_eq!(hold::release(&mut world.lane, 10).await.expect("releasing runs").len(), 1);
    obstacle.commit().await.expect("unlocked");
    assert_eq!(hold::release(&mut world.lane, 10).await.expect("releasing runs").len(), 1);

    set(&world, "UPDATE postrider.delivery_queue SET deadline_at = now()").await;
    let obstacle = lock(&world, ids[0]).await.expect("it is free");
    assert_eq!(expire::expire(&mut world.lane, Audience::Nobody, 10).await.expect("the sweep runs"), 1);
    obstacle.commit().await.expect("unlocked");
    assert_eq!(expire::expire(&mut world.lane, Audience::Nobody, 10).await.expect("the sweep runs"), 1);
}

/// Two claimed deliveries, the smaller id first.
async fn two_claimed(world: &mut World) -> [Claimed; 2] {
    world.application.publish("order.created", "{}").await;
    world.application.publish("order.created", "{}").await;
    let mut claimed = world.take(2).await;
    claimed.sort_by_key(|claimed| claimed.delivery.run.id);
    claimed.try_into().expect("two of them")
}

async fn settle(connection: &mut PgConnection, settlements: &[Settlement]) -> Vec<bool> {
    let results = settlements.iter().collect::<Vec<_>>();
    settle::settle(connection, &results).await.expect("the results can be written")
}

/// A result is being written for one delivery and about to be written for the other, which recovery meets first. If
/// recovery waited for the one, each would have what the other needs.
#[tokio::test]
async fn results_and_recovery_in_opposite_orders_do_not_deadlock() {
    let mut world = world().await;
    let [lower, upper] = two_claimed(&mut world).await;
    // The ones that end are written before those that are tried again: here against the order of the ids.
    let stall = Stall::at(&world.database, "BEFORE DELETE ON postrider.delivery_queue FOR EACH ROW").await;
    let mut stopped = marked_lane(&world, Lane::Work).await;
    let results = [delivered(&upper), scheduled(&lower, HOUR)];
    let me = world.me;
    let (held, recovered) = tokio::join!(settle(&mut stopped, &results), async {
        wait_for_waiting(world.database.pool(), 1).await;
        let recovered = recover(&mut world.lane, me).await;
        stall.end().await;
        recovered
    });
    assert_eq!(recovered.again, 1, "the delivery whose result is being written is left alone");
    assert_eq!(held, [true, false], "and the one that was taken back has no result any more");
}

/// The results come in any order, and their rows are locked in the order of their ids.
#[tokio::test]
async fn results_lock_their_deliveries_in_the_order_of_the_ids() {
    let mut world = world().await;
    let [lower, upper] = two_claimed(&mut world).await;
    let obstacle = lock(&world, lower.delivery.run.id).await.expect("it is free");
    let mut lane = marked_lane(&world, Lane::Work).await;
    // Longer than this test takes to look.
    sqlx::query("SET lock_timeout = '30s'").execute(&mut lane).await.expect("set");
    let results = [delivered(&upper), delivered(&lower)];
    let (held, second) = tokio::join!(settle(&mut lane, &results), async {
        wait_for_waiting(world.database.pool(), 1).await;
        let second = lock(&world, upper.delivery.run.id).await.map(drop);
        obstacle.commit().await.expect("unlocked");
        second
    });
    second.expect("whoever waits for the first row has not locked the second");
    assert_eq!(held, [true, true]);
}
