//! Whose delivery it is, when more than one session has something to say about that.

use postrider_core::id::InstanceId;
use postrider_store::{
    edit,
    endpoints::{self, DisabledReason},
    expire, hold,
    instances::{self, Role},
    lanes::Lane,
    outbox::Audience,
};
use sqlx::Connection as _;
use uuid::Uuid;

use super::{plain_lane, wait_for_waiting};
use crate::hot_path::{delivered, world};

#[tokio::test]
async fn a_heart_that_beat_again_is_not_declared_dead_and_a_dead_one_never_beats() {
    let mut world = world().await;
    let id = InstanceId::from_uuid(Uuid::now_v7());
    instances::register(&mut world.lane, id, Role::All, "test").await.expect("registered");
    let seen = instances::hearts(&mut world.lane).await.expect("the hearts are listed");
    // Between the look and the declaration.
    assert!(instances::beat(&mut world.lane, id).await.expect("the heart is written"));
    assert_eq!(instances::declare_dead(&mut world.lane, &seen).await.expect("declared"), 0);
    assert!(instances::beat(&mut world.lane, id).await.expect("the heart is written"));

    let seen = instances::hearts(&mut world.lane).await.expect("the hearts are listed");
    assert_eq!(instances::declare_dead(&mut world.lane, &seen).await.expect("declared"), 1);
    assert!(!instances::beat(&mut world.lane, id).await.expect("the heart is written"), "death is final");
    // Its first announcement, should it only arrive now, brings it back no more than a beat does.
    instances::register(&mut world.lane, id, Role::All, "test").await.expect("registered");
    assert!(!instances::beat(&mut world.lane, id).await.expect("the heart is written"));
    assert_eq!(instances::dead(&mut world.lane).await.expect("the dead are listed"), [id]);
}

/// The attempt may have succeeded: whoever holds the lease says how it ended.
#[tokio::test]
async fn the_deadline_sweep_leaves_a_leased_delivery_to_its_owner() {
    let mut world = world().await;
    world.application.publish("order.created", "{}").await;
    world.application.publish("order.created", "{}").await;
    let claimed = world.take(1).await.remove(0);
    sqlx::query("UPDATE postrider.delivery_queue SET deadline_at = now()")
        .execute(world.database.pool())
        .await
        .expect("the deadlines pass");
    assert_eq!(
        expire::expire(&mut world.lane, Audience::Nobody, 10).await.expect("the sweep runs"),
        1,
        "the one that waits"
    );
    assert_eq!(world.settle(&[delivered(&claimed)]).await, [true]);
    let outcomes: Vec<String> =
        sqlx::query_scalar("SELECT outcome FROM postrider.deliveries ORDER BY outcome DESC")
            .fetch_all(world.database.pool())
            .await
            .expect("the ended deliveries");
    assert_eq!(outcomes, ["delivered", "dead_lettered"]);
}

/// It comes while somebody changes the endpoint, and waits; what it waited for makes it void.
#[tokio::test]
async fn a_410_is_void_once_the_endpoint_it_came_from_was_changed() {
    let world = world().await;
    let version = async || -> i64 {
        sqlx::query_scalar("SELECT version FROM postrider.endpoints")
            .fetch_one(world.database.pool())
            .await
            .expect("the endpoint")
    };
    let asked = version().await;
    let disable = async |version| {
        hold::disable_gone(world.database.pool(), world.tenant.id, world.endpoint.id, version)
            .await
            .expect("the endpoint exists")
    };
    // Off and on again: what the 410 finds is enabled, and another version.
    let mut change = edit::begin(world.database.pool()).await.expect("a transaction begins");
    for reason in [Some(DisabledReason::Requested), None] {
        endpoints::set_disabled(&mut change, world.tenant.id, world.endpoint.id, reason)
            .await
            .expect("the endpoint exists");
    }
    let mut disabling = Box::pin(disable(asked));
    tokio::select! {
        _ = &mut disabling => panic!("it did not wait for the change"),
        () = wait_for_waiting(world.database.pool(), 1) => {}
    }
    change.commit().await.expect("the change is committed");
    assert!(!disabling.await, "the answer was about another version");

    world.endpoint.set_enabled(false).await;
    assert!(!disable(version().await).await, "it is disabled already");
    world.endpoint.set_enabled(true).await;
    assert!(disable(version().await).await);
    let reason: Option<String> = sqlx::query_scalar("SELECT disabled_reason FROM postrider.endpoints")
        .fetch_one(world.database.pool())
        .await
        .expect("the endpoint");
    assert_eq!(reason.as_deref(), Some("gone"));
}

/// The lanes' sessions bring limits of their own, so that a lock, a statement or a stopped process holds up the others for
/// a known time only.
#[tokio::test]
async fn every_lane_bounds_its_waits_and_its_silence() {
    let world = world().await;
    let lanes = [
        (Lane::Ingest, "500ms", "3s"),
        (Lane::IngestMetered, "500ms", "3s"),
        (Lane::IngestAside, "3s", "3s"),
        (Lane::Work, "200ms", "15s"),
        (Lane::Background, "3s", "15s"),
        (Lane::Upkeep, "500ms", "15s"),
    ];
    for (lane, lock, pause) in lanes {
        let mut connection = plain_lane(&world, lane).await;
        let limits: (String, String, String) = sqlx::query_as(
            "SELECT current_setting('lock_timeout'), current_setting('statement_timeout'),
                    current_setting('idle_in_transaction_session_timeout')",
        )
        .fetch_one(&mut connection)
        .await
        .expect("the settings are shown");
        assert_eq!(limits, (lock.to_owned(), "15s".to_owned(), pause.to_owned()), "{lane:?}");
        connection.close().await.expect("closed");
    }
}
