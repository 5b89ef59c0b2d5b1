//! What every queue has to do, each case once per queue.

use std::time::Duration;

use postrider_core::retry::Policy;

use postrider_store::instances::Role;
use postrider_testkit::{
    answer::Answer,
    clock::{Clock as _, SystemClock},
    receiver::Receiver,
};

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
    what_ends_its_workers_again_and_again_is_a_dead_letter_in_the_end,
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
    assert!((delay / 2..delay + Duration::from_secs(3)).contains(&waited), "{waited:?}");
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
    world.crash(dying).await;
    let heir = world.engine(Role::Worker);
    world.receiver.wait_for(2).await;
    let report = world.check().await;
    assert_eq!((report.delivered, world.repeats()), (1, 1));
    heir.drain().await;
    api.drain().await;
}

/// However often its message is brought: tries are counted in the row.
async fn what_ends_its_workers_again_and_again_is_a_dead_letter_in_the_end(mode: Mode) {
    let world = World::with_retry(mode, every(Duration::from_millis(10), 3)).await;
    let api = world.engine(Role::Api);
    world.receiver.answer_with(|_| Answer::never());
    world.publish(&api, 1).await;
    for crash in 1..=3 {
        let dying = world.engine(Role::Worker);
        world.receiver.wait_for(crash).await;
        world.crash(dying).await;
    }
    let heir = world.engine(Role::Worker);
    let report = world.check().await;
    assert_eq!((report.dead_lettered, report.interrupted_attempts, world.repeats()), (1, 3, 2));
    if world.broker.is_some() {
        world.wait_for_depth("postrider.ready", 0).await;
    }
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
