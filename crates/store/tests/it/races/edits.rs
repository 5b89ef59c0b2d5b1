//! A plan was made, and a person changes what it was made from.

use std::time::Duration;

use postrider_core::id::SigningKeyId;
use postrider_store::{
    edit,
    endpoints::{self, DisabledReason},
    ingest::Stored,
    lanes::Lane,
    retry,
    subscriptions::{self, NewSubscription},
};
use postrider_testkit::{
    scenario::new_event,
    stall::{MARK, Stall},
};
use sqlx::{PgConnection, PgPool, PgTransaction};

use super::{marked_lane, plain_lane, wait_for_waiting};
use crate::{
    hot_path::{World, world},
    queries_history::History,
    resources,
    resources_edits::Edit,
};

async fn store(world: &World, connection: &mut PgConnection) -> Vec<Stored> {
    let routing = world.application.routing().await;
    let event = new_event("order.created", "{}", None);
    world.store(connection, &routing, &[&event]).await.stored
}

async fn disable(world: &World) -> PgTransaction<'static> {
    let mut transaction = edit::begin(world.database.pool()).await.expect("a transaction begins");
    let reason = Some(DisabledReason::Requested);
    endpoints::set_disabled(&mut transaction, world.tenant.id, world.endpoint.id, reason)
        .await
        .expect("the endpoint exists");
    transaction
}

/// Whoever planned before the edit was committed waits for it, and sees then that the plan is no longer true.
#[tokio::test]
async fn a_batch_planned_before_a_running_edit_is_stale_after_it() {
    let world = world().await;
    let edit = disable(&world).await;
    let mut lane = plain_lane(&world, Lane::Ingest).await;
    let (stored, ()) = tokio::join!(store(&world, &mut lane), async {
        // A batch that did not wait would be stored by now, and nobody would be waiting, ever.
        tokio::time::timeout(Duration::from_secs(2), wait_for_waiting(world.database.pool(), 1))
            .await
            .expect("the batch waits for the edit");
        edit.commit().await.expect("the edit is committed");
    });
    assert_eq!(stored, [Stored::Stale]);
}

/// The other way round: what is being stored is stored under a plan that is true until the commit.
#[tokio::test]
async fn an_edit_waits_for_the_batch_that_planned_before_it() {
    let world = world().await;
    let stall = Stall::at(&world.database, "BEFORE INSERT ON postrider.events FOR EACH ROW").await;
    let mut lane = marked_lane(&world, Lane::Ingest).await;
    let (stored, ()) = tokio::join!(store(&world, &mut lane), async {
        wait_for_waiting(world.database.pool(), 1).await;
        let mut editing = Box::pin(disable(&world));
        tokio::select! {
            _ = &mut editing => panic!("the edit did not wait for the batch"),
            () = wait_for_waiting(world.database.pool(), 2) => {}
        }
        stall.end().await;
        editing.await.commit().await.expect("the edit is committed");
    });
    assert_eq!(stored, [Stored::New]);
}

/// It locks the endpoint first, as every edit of the endpoint does: the other way round each would have what the other
/// needs.
#[tokio::test]
async fn a_new_subscription_and_an_edit_of_its_endpoint_do_not_deadlock() {
    let world = world().await;
    let stall = Stall::at(&world.database, "BEFORE INSERT ON postrider.subscriptions FOR EACH ROW").await;
    let subscribing = async {
        let mut transaction = edit::begin(world.database.pool()).await.expect("a transaction begins");
        sqlx::query(MARK).execute(&mut *transaction).await.expect("marked");
        let new = NewSubscription {
            id: uuid::Uuid::now_v7().into(),
            name: &"another".parse().expect("a name"),
            application_id: world.application.id,
            endpoint_id: world.endpoint.id,
            event_types: &["*".parse().expect("a pattern")],
        };
        subscriptions::create(&mut transaction, world.tenant.id, new).await.expect("the subscription is new");
        transaction.commit().await.expect("the subscription is committed");
    };
    let editing = async {
        wait_for_waiting(world.database.pool(), 1).await;
        disable(&world).await.commit().await.expect("the edit is committed");
    };
    let releasing = async {
        wait_for_waiting(world.database.pool(), 2).await;
        stall.end().await;
    };
    tokio::join!(subscribing, editing, releasing);
}

/// Whether ingest of an application could begin now.
async fn is_free(pool: &PgPool, name: &str) -> bool {
    let mut ingest = pool.begin().await.expect("a transaction begins");
    sqlx::query_scalar(
        "SELECT pg_try_advisory_xact_lock_shared(postrider.plan_lock_key(application_id))
           FROM postrider.applications WHERE name = $1",
    )
    .bind(name)
    .fetch_one(&mut *ingest)
    .await
    .expect("the lock is asked for")
}

#[tokio::test]
async fn every_edit_keeps_out_ingest_of_exactly_the_applications_whose_plans_it_changes() {
    for edit in Edit::ALL {
        let world = resources::World::new().await;
        let before = world.versions().await;
        let mut transaction = world.begin().await;
        edit.apply(&world, world.tenant.id, &mut transaction).await.expect("the edit is made");
        let mut kept_out = Vec::new();
        for name in before.keys() {
            if !is_free(world.pool(), name).await {
                kept_out.push(name.clone());
            }
        }
        transaction.commit().await.expect("the edit is committed");
        assert_eq!(kept_out, world.stale_since(&before).await, "{edit:?}");
        assert!(!kept_out.is_empty(), "{edit:?}");
        for name in before.keys() {
            assert!(is_free(world.pool(), name).await, "{edit:?}: {name} is kept out for ever");
        }
    }
}

/// A process that is stopped in the middle of an edit keeps the events of these applications out: the server must end
/// its session in time.
#[tokio::test]
async fn an_edit_that_stands_still_is_ended_by_the_server() {
    let world = world().await;
    let mut edit = disable(&world).await;
    let limits: (String, String, String) = sqlx::query_as(
        "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout'),
                current_setting('statement_timeout')",
    )
    .fetch_one(&mut *edit)
    .await
    .expect("the settings are shown");
    assert_eq!(limits, ("10s".to_owned(), "5s".to_owned(), "10s".to_owned()));
}

/// Whoever erases an event locks it; a dead letter of it waits and then finds it gone.
#[tokio::test]
async fn a_dead_letter_is_not_sent_again_past_a_running_erasure() {
    let history = History::with_every_state().await;
    let id = history.delivery(postrider_store::deliveries::Status::DeadLettered);
    let mut erasure = history.pool().begin().await.expect("a transaction begins");
    let erase = sqlx::query("DELETE FROM postrider.events WHERE event_id = $1").bind(id.event().as_uuid());
    erase.execute(&mut *erasure).await.expect("erased");
    let retrying = async {
        let mut transaction = edit::begin(history.pool()).await.expect("a transaction begins");
        retry::retry(&mut transaction, history.tenant.id, id).await
    };
    let mut retrying = Box::pin(retrying);
    tokio::select! {
        outcome = &mut retrying => panic!("it did not wait for the erasure: {outcome:?}"),
        () = wait_for_waiting(history.pool(), 1) => {}
    }
    erasure.commit().await.expect("the erasure is committed");
    let outcome = retrying.await;
    assert!(matches!(outcome, Err(retry::Error::BodyGone)), "{outcome:?}");
}

/// A key that was replaced while its delivery was a dead letter is not what that is signed with.
#[tokio::test]
async fn a_dead_letter_waits_for_a_running_rotation_and_takes_its_key() {
    let history = History::with_every_state().await;
    let id = history.delivery(postrider_store::deliveries::Status::DeadLettered);
    let endpoint: uuid::Uuid =
        sqlx::query_scalar("SELECT endpoint_id FROM postrider.deliveries WHERE delivery_id = $1")
            .bind(id.as_uuid())
            .fetch_one(history.pool())
            .await
            .expect("the dead letter");
    let mut rotation = edit::begin(history.pool()).await.expect("a transaction begins");
    let key = postrider_store::signing_keys::NewSigningKey {
        id: SigningKeyId::from_uuid(uuid::Uuid::now_v7()),
        algorithm: postrider_core::signature::Algorithm::HmacSha256,
        sealed_secret: b"sealed",
    };
    endpoints::rotate_secret(&mut rotation, history.tenant.id, endpoint.into(), key, 0)
        .await
        .expect("rotated");
    let retrying = async {
        let mut transaction = edit::begin(history.pool()).await.expect("a transaction begins");
        retry::retry(&mut transaction, history.tenant.id, id).await.expect("it is a dead letter");
        transaction.commit().await.expect("the retry is committed");
    };
    let mut retrying = Box::pin(retrying);
    tokio::select! {
        () = &mut retrying => panic!("it did not wait for the rotation"),
        () = wait_for_waiting(history.pool(), 1) => {}
    }
    rotation.commit().await.expect("the rotation is committed");
    retrying.await;
    let used: uuid::Uuid =
        sqlx::query_scalar("SELECT signing_key_id FROM postrider.delivery_queue WHERE delivery_id = $1")
            .bind(id.as_uuid())
            .fetch_one(history.pool())
            .await
            .expect("it is open again");
    assert_eq!(used, key.id.as_uuid());
}

/// While somebody waits for a dead letter that another retries, it goes into the queue and comes back. It is in history
/// all the time that anybody but the other can see, so it must not be told to be unknown.
#[tokio::test]
async fn a_dead_letter_that_went_and_came_back_is_not_unknown() {
    let history = History::with_every_state().await;
    let id = history.delivery(postrider_store::deliveries::Status::DeadLettered);
    let mut first = edit::begin(history.pool()).await.expect("a transaction begins");
    // What moves a delivery takes the row out and puts in another.
    sqlx::query(
        "WITH gone AS (DELETE FROM postrider.deliveries WHERE delivery_id = $1 RETURNING *)
         INSERT INTO postrider.deliveries SELECT * FROM gone",
    )
    .bind(id.as_uuid())
    .execute(&mut *first)
    .await
    .expect("it goes and comes back");
    let retrying = async {
        let mut transaction = edit::begin(history.pool()).await.expect("a transaction begins");
        retry::retry(&mut transaction, history.tenant.id, id).await
    };
    let mut retrying = Box::pin(retrying);
    tokio::select! {
        outcome = &mut retrying => panic!("it did not wait for the first: {outcome:?}"),
        () = wait_for_waiting(history.pool(), 1) => {}
    }
    first.commit().await.expect("the first is committed");
    let outcome = retrying.await;
    assert!(matches!(outcome, Err(retry::Error::NotDeadLettered)), "{outcome:?}");
}
