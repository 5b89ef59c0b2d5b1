//! A process whose clock is years off.

use std::time::Duration;

use postrider_core::retry::Policy;
use postrider_testkit::{answer::Answer, clock::FakeClock, scenario::new_event};
use time::macros::datetime;

use super::{DELIVERED, World};

#[tokio::test]
async fn retries_and_deadlines_follow_the_databases_clock() {
    let hour = Duration::from_secs(3_600);
    for start in [datetime!(2001-01-01 00:00 UTC), datetime!(2090-01-01 00:00 UTC)] {
        let world = World { clock: FakeClock::at(start), ..World::new().await };
        let policy = Policy::new(3, 4 * hour, hour, hour).expect("a policy within bounds");
        let (application, _) = world.pair_with("orders", |endpoint| endpoint.retry(policy)).await;
        world.receiver.queue([Answer::status(503)]);
        let engine = world.start().await;
        engine.publish(&application, new_event("order.created", "{}", None)).await.expect("accepted");
        // Between half and the whole of the delay from now, as the database has it.
        let due = "SELECT count(*) FROM postrider.delivery_queue WHERE state = 'scheduled'
            AND due_at - now() BETWEEN interval '29 min' AND interval '60 min'
            AND deadline_at - now() BETWEEN interval '239 min' AND interval '240 min'";
        world.pass_until(due, 1).await;
        world.execute("UPDATE postrider.delivery_queue SET due_at = now()").await;
        world.pass_until(DELIVERED, 1).await;
        let sound = "SELECT count(*) FROM postrider.attempts
            WHERE started_at BETWEEN now() - interval '10 min' AND now() AND ended_at - started_at < interval '5 min'";
        assert_eq!(world.count(sound).await, 2, "{start}");
        drop(engine);
    }
}

/// With half of its time gone a delivery is not tried again if the next try could only start after the deadline.
#[tokio::test]
async fn a_retry_that_could_only_start_after_the_deadline_is_not_made() {
    let hour = Duration::from_secs(3_600);
    for start in [datetime!(2001-01-01 00:00 UTC), datetime!(2090-01-01 00:00 UTC)] {
        let world = World { clock: FakeClock::at(start), ..World::new().await };
        let policy = Policy::new(3, 4 * hour, hour, hour).expect("a policy within bounds");
        let (application, _) = world.pair_with("orders", |endpoint| endpoint.retry(policy)).await;
        application.publish("order.created", "{}").await;
        world.execute("UPDATE postrider.delivery_queue SET deadline_at = now() + interval '20 min'").await;
        world.receiver.queue([Answer::status(503)]);
        let engine = world.start().await;
        let dead = "SELECT count(*) FROM postrider.deliveries WHERE dead_reason = 'deadline_passed'";
        world.pass_until(dead, 1).await;
        assert_eq!(world.receiver.requests().len(), 1, "{start}");
        drop(engine);
    }
}
