//! When a delivery is tried again that its receiver refused: within bounds whatever it asked for, and not together with the
//! others that were refused with it.

use std::time::Duration;

use postrider_core::retry::{MAX_RETRY_AFTER, Policy};
use postrider_testkit::{
    answer::Answer,
    postgres::Database,
    receiver::Receiver,
    running::Running,
    scenario::{Application, Scenario},
};
use sqlx::PgPool;

use crate::delivery::wait_for_count;

/// Deliveries that have not ended and do not wait for their next try.
const UNDER_WAY: &str = "SELECT count(*) FROM postrider.delivery_queue WHERE state <> 'scheduled'";
const HOUR: Duration = Duration::from_secs(3_600);
/// What passes between an answer and the time that its result is written down.
const LATE: Duration = Duration::from_secs(30);

struct World {
    database: Database,
    receiver: Receiver,
    application: Application,
    engine: Running,
}

/// An endpoint that is tried again after half an hour to an hour, for a week.
async fn world() -> World {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
    let application = tenant.application("orders").await;
    let policy = Policy::new(5, Policy::AGE_BOUND, HOUR, HOUR).expect("a policy within bounds");
    let endpoint = tenant.endpoint("warehouse", &receiver.url("/")).retry(policy).create().await;
    application.sends(&["*"], &endpoint).await;
    let engine = Running::start(&database);
    World { database, receiver, application, engine }
}

/// How long each delivery waits for its next try, from its acceptance.
async fn waits(pool: &PgPool) -> Vec<Duration> {
    let waits =
        "SELECT extract(epoch FROM due_at - accepted_at)::float8 FROM postrider.delivery_queue ORDER BY 1";
    let waits: Vec<f64> = sqlx::query_scalar(waits).fetch_all(pool).await.expect("the queue");
    waits.into_iter().map(Duration::from_secs_f64).collect()
}

#[tokio::test]
async fn a_wait_stays_within_bounds_whatever_the_receiver_asks_for() {
    let backoff = HOUR / 2..=HOUR;
    let spread = |asked: Duration| asked..=asked + asked / 10;
    let capped = spread(MAX_RETRY_AFTER);
    for (asked, expected) in [
        ("99999999999", &capped),
        ("99999999999999999999999999999", &capped),
        ("Fri, 31 Dec 9999 23:59:59 GMT", &capped),
        ("7200", &spread(2 * HOUR)),
        ("-5", &backoff),
        ("0", &backoff),
        ("Thu, 01 Jan 1970 00:00:00 GMT", &backoff),
        ("Fri, 31 Dec 99999 23:59:59 GMT", &backoff),
        ("soon", &backoff),
    ] {
        let world = world().await;
        world.receiver.answer_with(move |_| Answer::status(429).header("Retry-After", asked));
        world.application.publish("order.created", "{}").await;
        wait_for_count(world.database.pool(), UNDER_WAY, 0).await;
        let waits = waits(world.database.pool()).await;
        let [wait] = waits[..] else { panic!("{asked}: it is not tried again") };
        assert!(*expected.start() <= wait && wait <= *expected.end() + LATE, "{asked}: {wait:?}");
        world.engine.drain().await;
        assert_eq!(world.receiver.requests().len(), 1, "{asked}");
    }
}

/// Or each outage would end in a storm, and the storm in the next outage.
#[tokio::test]
async fn what_was_refused_at_one_moment_does_not_come_back_at_one_moment() {
    const EVENTS: usize = 200;
    let asked = ("18000", 5 * HOUR);
    for (answer, from, over) in [
        (Answer::status(503), HOUR / 2, HOUR / 2),
        (Answer::status(429).header("Retry-After", asked.0), asked.1, asked.1 / 10),
    ] {
        let world = world().await;
        world.receiver.answer_with(move |_| answer.clone());
        for _ in 0..EVENTS {
            world.application.publish("order.created", "{}").await;
        }
        wait_for_count(world.database.pool(), UNDER_WAY, 0).await;
        let waits = waits(world.database.pool()).await;
        assert_eq!(waits.len(), EVENTS);
        // Of the half hour that they are spread over each tenth gets its share.
        for tenth in 0..10 {
            let begin = from + tenth * over / 10;
            let share = waits.iter().filter(|wait| (begin..begin + over / 10 + LATE).contains(*wait)).count();
            assert!((3..=50).contains(&share), "{share} of {EVENTS} in tenth {tenth} from {from:?} on");
        }
        world.engine.drain().await;
    }
}
