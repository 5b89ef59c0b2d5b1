//! What every queue has to do, each case once per queue.

use std::time::Duration;

use postrider_core::retry::Policy;
use postrider_engine::clock::{Clock as _, SystemClock};
use postrider_store::instances::{self, Role};
use postrider_testkit::{answer::Answer, receiver::Receiver};

use super::world::{Mode, World};

/// Runs each case over the table alone and over RabbitMQ beside it.
macro_rules! for_every_queue {
    ($($case:ident),* $(,)?) => {
        mod table {
            use super::Mode;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(Mode::Table).await;
            })*
        }
        mod rabbitmq {
            use super::Mode;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(Mode::RabbitMq).await;
            })*
        }
    };
}

for_every_queue!(
    what_is_published_arrives_once,
    one_process_accepts_and_two_deliver,
    a_failed_delivery_comes_back_when_it_is_due,
    what_ends_without_success_is_a_dead_letter,
    a_delivery_whose_worker_died_is_sent_by_another,
    a_drained_process_leaves_its_work_to_others,
    a_hanging_endpoint_holds_up_nobody,
    what_was_accepted_before_any_worker_came_is_delivered,
);

fn every(delay: Duration, max_attempts: u16) -> Policy {
    Policy::new(max_attempts, Duration::from_secs(60), delay, delay).expect("a policy within bounds")
}

async fn what_is_published_arrives_once(mode: Mode) {
    let world = World::new(mode).await;
    let engine = world.engine(Role::All);
    world.publish(&engine, 200).await;
    world.receiver.wait_for(200).await;
    let report = world.check().await;
    assert_eq!(report.delivered, 200);
    assert_eq!(world.repeats(), 0);
    engine.drain().await;
}

async fn one_process_accepts_and_two_deliver(mode: Mode) {
    let world = World::new(mode).await;
    let api = world.engine(Role::Api);
    let workers = [world.engine(Role::Worker), world.engine(Role::Worker)];
    let other = Receiver::start().await;
    for number in 0..5 {
        let endpoint = world.tenant.endpoint(&format!("other-{number}"), &other.url("/")).create().await;
        world.application.sends(&["*"], &endpoint).await;
    }
    world.publish(&api, 100).await;
    world.receiver.wait_for(100).await;
    other.wait_for(500).await;
    world.wait_for_count("SELECT count(*) FROM postrider.delivery_queue", 0).await;
    assert_eq!(world.repeats(), 0);
    for engine in workers.into_iter().chain([api]) {
        engine.drain().await;
    }
}

/// Not before its time, and soon after it.
async fn a_failed_delivery_comes_back_when_it_is_due(mode: Mode) {
    let delay = Duration::from_secs(2);
    let world = World::with_retry(mode, every(delay, 5)).await;
    let engine = world.engine(Role::All);
    world.receiver.queue([Answer::status(503)]);
    world.publish(&engine, 1).await;
    world.receiver.wait_for(1).await;
    let since = SystemClock::new();
    world.receiver.wait_for(2).await;
    let waited = since.monotonic();
    assert!((delay.mul_f64(0.7)..delay + Duration::from_secs(3)).contains(&waited), "{waited:?}");
    world.check().await;
    engine.drain().await;
}

async fn what_ends_without_success_is_a_dead_letter(mode: Mode) {
    let world = World::with_retry(mode, every(Duration::from_millis(10), 2)).await;
    let engine = world.engine(Role::All);
    world.receiver.answer_with(|_| Answer::status(500));
    world.publish(&engine, 3).await;
    let ended = "SELECT count(*) FROM postrider.deliveries
                  WHERE outcome = 'dead_lettered' AND dead_reason = 'attempts_exhausted'";
    world.wait_for_count(ended, 3).await;
    world.check().await;
    assert_eq!(world.receiver.requests().len(), 6);
    if world.broker.is_some() {
        // So that whoever watches the broker sees them too.
        world.wait_for_depth("postrider.dead", 3).await;
    }
    engine.drain().await;
}

async fn a_delivery_whose_worker_died_is_sent_by_another(mode: Mode) {
    let world = World::new(mode).await;
    let api = world.engine(Role::Api);
    world.receiver.queue([Answer::never()]);
    let dying = world.engine(Role::Worker);
    world.publish(&api, 1).await;
    world.receiver.wait_for(1).await;
    // Ends as a crash would.
    drop(dying);
    let heir = world.engine(Role::Worker);
    let mut connection = world.database.pool().acquire().await.expect("a connection");
    let registered =
        "SELECT count(*) FROM postrider.instances WHERE role = 'worker' AND declared_dead_at IS NULL";
    world.wait_for_count(registered, 2).await;
    // Stands for the heir watching the heart stand still for its time to live.
    let owners: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT lease_owner FROM postrider.delivery_queue")
        .fetch_all(&mut *connection)
        .await
        .expect("the lease stands");
    let hearts = instances::hearts(&mut connection).await.expect("the hearts can be read");
    let dead: Vec<_> =
        hearts.into_iter().filter(|heart| owners.contains(&heart.instance_id.as_uuid())).collect();
    instances::declare_dead(&mut connection, &dead).await.expect("it is declared dead");
    world.receiver.wait_for(2).await;
    let report = world.check().await;
    assert_eq!((report.delivered, world.repeats()), (1, 1));
    heir.drain().await;
    api.drain().await;
}

async fn a_drained_process_leaves_its_work_to_others(mode: Mode) {
    let world = World::new(mode).await;
    let first = world.engine(Role::All);
    world.publish(&first, 50).await;
    first.drain().await;
    let second = world.engine(Role::All);
    world.publish(&second, 50).await;
    let report = world.check().await;
    assert_eq!((report.delivered, world.repeats()), (100, 0));
    second.drain().await;
}

/// Its messages and rows are in front of everybody else's.
async fn a_hanging_endpoint_holds_up_nobody(mode: Mode) {
    let world = World::new(mode).await;
    let hanging = Receiver::start().await;
    hanging.answer_with(|_| Answer::never());
    let slow = world.tenant.application("slow").await;
    let minute = Duration::from_secs(60);
    let endpoint = world.tenant.endpoint("hanging", &hanging.url("/")).timeout(minute).create().await;
    slow.sends(&["*"], &endpoint).await;
    let engine = world.engine(Role::All);
    for _ in 0..300 {
        let event = postrider_testkit::scenario::new_event("order.created", "{}", None);
        engine.publish(&slow, event).await.expect("the event is accepted");
    }
    hanging.wait_for(1).await;
    let since = SystemClock::new();
    world.publish(&engine, 20).await;
    world.receiver.wait_for(20).await;
    let waited = since.monotonic();
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

async fn what_was_accepted_before_any_worker_came_is_delivered(mode: Mode) {
    let world = World::new(mode).await;
    let api = world.engine(Role::Api);
    world.publish(&api, 30).await;
    if mode == Mode::RabbitMq {
        world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
    }
    let worker = world.engine(Role::Worker);
    let report = world.check().await;
    assert_eq!((report.delivered, world.repeats()), (30, 0));
    worker.drain().await;
    api.drain().await;
}
