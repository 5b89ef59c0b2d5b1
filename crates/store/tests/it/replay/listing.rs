//! Letters to an approved endpoint whose application the registry lists no longer: none goes there again.

use postrider_core::id::DeliveryId;
use postrider_store::{
    deliveries::Status as DeliveryStatus,
    edit, registry,
    replay::{Filter, Skipped, Status},
    retry::{self, Error},
};
use postrider_testkit::scenario::{Application, Endpoint};
use sqlx::PgTransaction;

use super::{OPEN, World};
use crate::races::wait_for_waiting;

/// Made by the tenant's own sender, as a test of the endpoint is.
const BECOME_A_TEST: &str = "
    UPDATE postrider.deliveries d SET application_id = a.application_id
      FROM postrider.applications a
     WHERE d.delivery_id = $1 AND a.tenant_id = d.tenant_id AND a.kind = 'system'";

/// An approved endpoint, and a dead letter to it from each of three who might reach it.
struct Letters {
    sms: Endpoint,
    other: Application,
    of_orders: DeliveryId,
    of_other: DeliveryId,
    of_a_test: DeliveryId,
}

async fn letters(world: &World) -> Letters {
    let (tenant, orders) = (&world.history.tenant, &world.history.orders);
    let other = tenant.application("other").await;
    let sms = tenant.endpoint("sms", "https://sms.example/").approved_for(&[orders, &other]).create().await;
    let mut dead = Vec::new();
    for application in [orders, &other] {
        application.sends(&["sms.*"], &sms).await;
    }
    for application in [orders, &other, orders] {
        let id = application.publish("sms.due", "{}").await.deliveries[0];
        world.history.bring(id, DeliveryStatus::DeadLettered).await;
        dead.push(id);
    }
    let [of_orders, of_other, of_a_test] = *dead else { panic!("{dead:?}") };
    world.change(BECOME_A_TEST, of_a_test).await;
    Letters { sms, other, of_orders, of_other, of_a_test }
}

/// Applies a registry that lists these applications alone, all but the commit.
async fn apply(world: &World, sms: &Endpoint, applications: &[&Application]) -> PgTransaction<'static> {
    let tenant_id = world.history.tenant.id;
    let ids: Vec<_> = applications.iter().map(|application| application.id).collect();
    let mut transaction = edit::begin(world.history.pool()).await.expect("a transaction begins");
    registry::lock(&mut transaction, &[(tenant_id, sms.id)], &ids, &[]).await.expect("locked");
    registry::set_applications(&mut transaction, tenant_id, sms.id, &ids).await.expect("listed");
    transaction
}

async fn retry(world: &World, id: DeliveryId) -> Result<(), Error> {
    let mut transaction = edit::begin(world.history.pool()).await.expect("a transaction begins");
    retry::retry(&mut transaction, world.history.tenant.id, id).await?;
    Ok(transaction.commit().await?)
}

#[tokio::test]
async fn a_delisted_applications_letter_is_not_sent_again_by_hand() {
    let world = World::with_letters(0).await;
    let letters = letters(&world).await;
    let orders = &world.history.orders;
    apply(&world, &letters.sms, &[orders]).await.commit().await.expect("applied");
    let refused = retry(&world, letters.of_other).await;
    assert!(matches!(refused, Err(Error::NotListed)), "{refused:?}");
    assert_eq!(world.count(OPEN).await, 0, "it stays a dead letter");
    retry(&world, letters.of_orders).await.expect("its application is listed");
    retry(&world, letters.of_a_test).await.expect("a test is the tenant's own");

    // It has not become another letter: listed anew, it goes.
    apply(&world, &letters.sms, &[orders, &letters.other]).await.commit().await.expect("applied");
    retry(&world, letters.of_other).await.expect("its application is listed again");
    assert_eq!(world.count(OPEN).await, 3);
}

#[tokio::test]
async fn a_replay_leaves_a_delisted_applications_letters_as_they_are() {
    let mut world = World::with_letters(1).await;
    let letters = letters(&world).await;
    let replay = world.running().await;
    assert_eq!(replay.matches, 5, "two of them to endpoints that nobody approved");
    let orders = world.history.orders.clone();
    apply(&world, &letters.sms, &[&orders]).await.commit().await.expect("applied");
    world.run().await;
    let shown = world.look(replay.id).await;
    assert_eq!((shown.status, shown.replayed), (Status::Finished, 4));
    assert_eq!(shown.skipped, Skipped { not_listed: 1, ..Skipped::default() });
    assert_eq!(world.count(OPEN).await, 4);

    // The totals are those of what ran, too, where somebody ends it.
    let replay = world.running().await;
    assert_eq!(replay.matches, 1, "the letter is still there");
    world.turn(100).await.expect("a turn");
    assert_eq!(world.look(replay.id).await.skipped.not_listed, 1, "while it runs");
    world.cancel(replay.id).await.expect("cancelled");
    assert_eq!(world.look(replay.id).await.skipped.not_listed, 1, "when it is over");

    apply(&world, &letters.sms, &[&orders, &letters.other]).await.commit().await.expect("applied");
    let found = world.preview(&Filter::default()).await;
    world.execute(found.id).await.expect("executed");
    world.run().await;
    assert_eq!(world.look(found.id).await.replayed, 1, "listed again, it goes");
}

/// Whoever sends a letter again while a registry is being applied waits for it, and goes by what it says.
#[tokio::test]
async fn a_registry_that_is_being_applied_counts_for_those_who_wait_for_it() {
    for is_listed in [false, true] {
        let world = World::with_letters(0).await;
        let letters = letters(&world).await;
        let (orders, other) = (&world.history.orders, &letters.other);
        if is_listed {
            apply(&world, &letters.sms, &[orders]).await.commit().await.expect("applied");
        }
        let next: &[&Application] = if is_listed { &[orders, other] } else { &[orders] };
        let applying = apply(&world, &letters.sms, next).await;
        let commit = async {
            wait_for_waiting(world.history.pool(), 1).await;
            applying.commit().await.expect("applied");
        };
        let (outcome, ()) = tokio::join!(retry(&world, letters.of_other), commit);
        match outcome {
            Ok(()) => assert!(is_listed),
            Err(Error::NotListed) => assert!(!is_listed),
            Err(error) => panic!("{error}"),
        }
    }
}
