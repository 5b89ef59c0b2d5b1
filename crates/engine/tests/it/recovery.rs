//! Lost leases, disabled endpoints and rotated keys.

use std::time::Duration;

use postrider_core::{id::InstanceId, retry::Policy};
use postrider_store::instances;
use postrider_testkit::{
    answer::Answer,
    ledger::{Expectation, Ledger},
    postgres::Database,
    receiver::Receiver,
    running::Running,
    scenario::{Application, Endpoint, Scenario},
};
use sqlx::PgPool;

use crate::delivery::{is_signed_by, wait_for_count, wait_until_nothing_is_open};

/// An endpoint that gets everything of one application, and no engine yet.
struct World {
    database: Database,
    receiver: Receiver,
    application: Application,
    endpoint: Endpoint,
}

async fn world(retry: Policy) -> World {
    let (database, receiver) = (Database::fresh().await, Receiver::start().await);
    let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
    let application = tenant.application("orders").await;
    let endpoint = tenant.endpoint("warehouse", &receiver.url("/")).retry(retry).create().await;
    application.sends(&["*"], &endpoint).await;
    World { database, receiver, application, endpoint }
}

async fn declare_all_dead(pool: &PgPool) {
    let mut connection = pool.acquire().await.expect("a connection");
    let hearts = instances::hearts(&mut connection).await.expect("the hearts can be read");
    instances::declare_dead(&mut connection, &hearts).await.expect("they can be declared dead");
}

#[tokio::test]
async fn a_delivery_whose_worker_died_is_sent_again_with_its_id() {
    let World { database, receiver, application, .. } = world(Policy::DEFAULT).await;
    receiver.queue([Answer::never()]);
    let published = application.publish("order.created", "{}").await;

    let dying = Running::start(&database);
    receiver.wait_for(1).await;
    drop(dying);
    let heir = Running::start(&database);
    // Stands for the heir watching the heart stand still for its time to live.
    let registered = "SELECT count(*) FROM postrider.instances WHERE declared_dead_at IS NULL";
    wait_for_count(database.pool(), registered, 2).await;
    let dead: Vec<InstanceId> = sqlx::query_scalar("SELECT lease_owner FROM postrider.delivery_queue")
        .fetch_all(database.pool())
        .await
        .expect("the lease stands")
        .into_iter()
        .map(InstanceId::from_uuid)
        .collect();
    let mut connection = database.pool().acquire().await.expect("a connection");
    for id in dead {
        instances::retire(&mut connection, id).await.expect("the dead is declared so");
    }

    let requests = receiver.wait_for(2).await;
    assert_eq!(requests[0].webhook_id(), requests[1].webhook_id());
    assert_eq!(requests[1].webhook_id(), published.deliveries[0].to_string());
    assert_eq!(requests[1].header("postrider-attempt"), Some("2"));
    wait_until_nothing_is_open(database.pool()).await;
    heir.drain().await;
    let expectation = Expectation { poll: Duration::from_secs(1), everything_ended: true };
    let report = Ledger::default().with_receiver(&receiver).check(database.pool(), expectation).await;
    assert_eq!((report.delivered, report.interrupted_attempts, report.attempts), (1, 1, 2));
}

#[tokio::test]
async fn a_process_declared_dead_goes_on_under_a_new_life() {
    let World { database, receiver, application, .. } = world(Policy::DEFAULT).await;
    receiver.queue([Answer::never()]);
    let engine = Running::start(&database);
    application.publish("order.created", "{}").await;
    receiver.wait_for(1).await;
    declare_all_dead(database.pool()).await;
    receiver.wait_for(2).await;
    wait_until_nothing_is_open(database.pool()).await;
    engine.drain().await;
    let lives: i64 = sqlx::query_scalar("SELECT count(*) FROM postrider.instances")
        .fetch_one(database.pool())
        .await
        .expect("lives");
    assert_eq!(lives, 2);
}

#[tokio::test]
async fn deliveries_of_a_disabled_endpoint_wait_until_it_is_enabled() {
    let World { database, receiver, application, endpoint } = world(Policy::DEFAULT).await;
    application.publish("order.created", "{}").await;
    endpoint.set_enabled(false).await;

    let engine = Running::start(&database);
    let held = "SELECT count(*) FROM postrider.delivery_queue WHERE state = 'held'";
    wait_for_count(database.pool(), held, 1).await;
    assert!(receiver.requests().is_empty());
    endpoint.set_enabled(true).await;
    receiver.wait_for(1).await;
    wait_until_nothing_is_open(database.pool()).await;
    engine.drain().await;
}

#[tokio::test]
async fn an_open_delivery_past_its_deadline_becomes_a_dead_letter() {
    let second = Duration::from_secs(1);
    let policy = Policy::new(3, second, second, second).expect("a policy within bounds");
    let World { database, receiver, application, endpoint } = world(policy).await;
    application.publish("order.created", "{}").await;
    endpoint.set_enabled(false).await;

    let engine = Running::start(&database);
    let late = "SELECT count(*) FROM postrider.deliveries WHERE dead_reason = 'deadline_passed'";
    wait_for_count(database.pool(), late, 1).await;
    engine.drain().await;
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn queued_work_keeps_its_key_and_an_overlap_adds_the_other_signature() {
    let World { database, receiver, application, mut endpoint } = world(Policy::DEFAULT).await;
    let first = endpoint.clone();
    application.publish("order.created", r#"{"under":"first"}"#).await;
    endpoint.rotate(0).await;
    let second = endpoint.clone();
    application.publish("order.created", r#"{"under":"second"}"#).await;
    endpoint.rotate(3_600).await;
    application.publish("order.created", r#"{"under":"third"}"#).await;

    let engine = Running::start(&database);
    let requests = receiver.wait_for(3).await;
    let check = |body: &[u8], key: &Endpoint, verifies: &[(&Endpoint, bool)]| {
        let request = requests.iter().find(|request| &*request.body == body).expect("it arrived");
        assert_eq!(request.header("postrider-key-id"), Some(&*key.signing_key_id.to_string()));
        for (endpoint, expected) in verifies {
            assert_eq!(is_signed_by(request, endpoint), *expected, "{:?}", String::from_utf8_lossy(body));
        }
    };
    // While an overlap runs, a receiver may hold the current secret or the one before, and accepts everything.
    check(br#"{"under":"first"}"#, &first, &[(&first, true), (&second, true), (&endpoint, true)]);
    check(br#"{"under":"second"}"#, &second, &[(&first, false), (&second, true), (&endpoint, true)]);
    check(br#"{"under":"third"}"#, &endpoint, &[(&first, false), (&second, true), (&endpoint, true)]);
    wait_until_nothing_is_open(database.pool()).await;
    engine.drain().await;
}
