//! The way of an event through the engine: over a real database and real HTTP to a scripted receiver.

use std::time::Duration;

use postrider_core::{
    id::DeliveryId,
    retry::Policy,
    signature::{self, VerifyingKey},
};
use postrider_store::ingest::Refusal;
use postrider_testkit::{
    answer::Answer,
    ledger::{Accepted, Expectation, Ledger, Report},
    postgres::Database,
    receiver::{Receiver, Request},
    running::Running,
    scenario::{Application, Endpoint, Scenario, Tenant, new_event},
};
use sqlx::PgPool;

/// Retries at once, so that a test need not wait.
fn hasty(max_attempts: u16) -> Policy {
    let delay = Duration::from_millis(1);
    Policy::new(max_attempts, Duration::from_secs(60), delay, delay).expect("a policy within bounds")
}

struct World {
    database: Database,
    receiver: Receiver,
    engine: Running,
    tenant: Tenant,
    application: Application,
    endpoint: Endpoint,
}

async fn world(policy: Policy) -> World {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let engine = Running::start(&database);
    let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
    let application = tenant.application("orders").await;
    let endpoint = tenant.endpoint("warehouse", &receiver.url("/hook")).retry(policy).create().await;
    application.sends(&["order.*"], &endpoint).await;
    World { database, receiver, engine, tenant, application, endpoint }
}

impl World {
    /// Publishes, lets everything end, and checks the ledgers.
    async fn publish_and_check(self, bodies: &[&'static str]) -> (Report, Database) {
        let mut ledger = Ledger::default();
        for body in bodies {
            let event = new_event("order.created", *body, None);
            let accepted =
                self.engine.publish(&self.application, event).await.expect("the event is accepted");
            ledger.accepted.push(Accepted {
                event_id: accepted.event_id,
                key: None,
                deliveries: accepted.deliveries,
                body: (*body).into(),
            });
        }
        wait_until_nothing_is_open(self.database.pool()).await;
        self.engine.drain().await;
        let expectation = Expectation { poll: Duration::from_secs(1), everything_ended: true };
        let report = ledger.with_receiver(&self.receiver).check(self.database.pool(), expectation).await;
        (report, self.database)
    }
}

/// Asks the database until the queue is empty; the test runner's limit bounds it.
pub(crate) async fn wait_until_nothing_is_open(pool: &PgPool) {
    wait_for_count(pool, "SELECT count(*) FROM postrider.delivery_queue", 0).await;
}

pub(crate) async fn wait_for_count(pool: &PgPool, query: &'static str, expected: i64) {
    loop {
        let count: i64 = sqlx::query_scalar(query).fetch_one(pool).await.expect("the database answers");
        if count == expected {
            return;
        }
        tokio::task::yield_now().await;
    }
}

pub(crate) fn is_signed_by(request: &Request, endpoint: &Endpoint) -> bool {
    let headers = request
        .headers()
        .into_iter()
        .map(|(name, value)| (name.parse().expect("a name"), value.parse().expect("a value")))
        .collect();
    let timestamp =
        request.header("webhook-timestamp").and_then(|text| text.parse().ok()).expect("a timestamp");
    let key: VerifyingKey = endpoint.secret.reveal().parse().expect("a shown secret is a key");
    signature::verify(&headers, &request.body, timestamp, &[key]).is_ok()
}

#[tokio::test]
async fn an_event_is_delivered_signed_and_recorded() {
    let world = world(Policy::DEFAULT).await;
    let event = new_event("order.created", r#"{"orderId":42}"#, None);
    let event_id = event.event_id;
    let accepted = world.engine.publish(&world.application, event).await.expect("the event is accepted");
    assert_eq!((accepted.event_id, accepted.deliveries, accepted.duplicate), (event_id, 1, false));

    let request = world.receiver.wait_for(1).await.remove(0);
    assert_eq!(
        (request.method(), request.target(), &*request.body),
        ("POST", "/hook", &br#"{"orderId":42}"#[..])
    );
    assert!(is_signed_by(&request, &world.endpoint));
    let mut names: Vec<String> =
        request.headers().iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    names.sort();
    let expected = [
        "content-length",
        "content-type",
        "host",
        "postrider-attempt",
        "postrider-delivery-id",
        "postrider-event-id",
        "postrider-event-type",
        "postrider-key-id",
        "traceparent",
        "user-agent",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    ];
    assert_eq!(names, expected, "nothing else goes out: no secret by accident");
    let delivery: DeliveryId = request.webhook_id().parse().expect("the id of a delivery");
    assert_eq!(delivery.event(), event_id);
    assert_eq!(request.header("postrider-key-id"), Some(&*world.endpoint.signing_key_id.to_string()));
    assert_eq!(request.header("postrider-attempt"), Some("1"));

    wait_until_nothing_is_open(world.database.pool()).await;
    let (outcome, status): (String, i16) =
        sqlx::query_as("SELECT outcome, status_code FROM postrider.attempts WHERE delivery_id = $1")
            .bind(delivery.as_uuid())
            .fetch_one(world.database.pool())
            .await
            .expect("one attempt is recorded");
    assert_eq!((outcome.as_str(), status), ("delivered", 200));
}

#[tokio::test]
async fn what_waits_in_the_queue_is_found_and_delivered() {
    let world = world(Policy::DEFAULT).await;
    // Stored past the engine: as another process would, or this one before it crashed.
    for number in 0..50 {
        world.application.publish("order.created", format!("{{\"n\":{number}}}")).await;
    }
    world.receiver.wait_for(50).await;
    wait_until_nothing_is_open(world.database.pool()).await;
    world.engine.drain().await;
}

#[tokio::test]
async fn a_failed_delivery_is_tried_again_under_the_same_id() {
    let world = world(hasty(5)).await;
    world.receiver.queue([
        Answer::status(503),
        Answer::raw("no HTTP\r\n\r\n"),
        Answer::status(429),
        Answer::ok(),
    ]);
    world.application.publish("order.created", "{}").await;
    let requests = world.receiver.wait_for(4).await;
    let ids: std::collections::HashSet<&str> = requests.iter().map(Request::webhook_id).collect();
    let traces: std::collections::HashSet<&str> = requests
        .iter()
        .filter_map(|request| request.header("traceparent"))
        .map(|value| &value[..35])
        .collect();
    assert_eq!((ids.len(), traces.len()), (1, 1), "the id and the trace stay");
    let numbers: Vec<_> = requests.iter().filter_map(|request| request.header("postrider-attempt")).collect();
    assert_eq!(numbers, ["1", "2", "3", "4"]);
    for request in &requests {
        assert!(is_signed_by(request, &world.endpoint));
    }
    wait_until_nothing_is_open(world.database.pool()).await;
    let outcomes: Vec<String> =
        sqlx::query_scalar("SELECT outcome FROM postrider.attempts ORDER BY attempt_number")
            .fetch_all(world.database.pool())
            .await
            .expect("attempts");
    assert_eq!(outcomes, ["scheduled", "scheduled", "scheduled", "delivered"]);
}

#[tokio::test]
async fn deliveries_end_as_dead_letters_for_a_reason() {
    for (answer, attempts, reason) in [
        (Answer::status(404), 1, "rejected"),
        (Answer::status(301).header("Location", "http://127.0.0.1:1/"), 1, "rejected"),
        (Answer::status(500), 3, "attempts_exhausted"),
        (Answer::status(429).header("Retry-After", "3600"), 1, "deadline_passed"),
    ] {
        let world = world(hasty(3)).await;
        world.receiver.answer_with(move |_| answer.clone());
        let (report, database) = world.publish_and_check(&["{}"]).await;
        assert_eq!((report.dead_lettered, report.attempts), (1, attempts), "{reason}");
        let recorded: String = sqlx::query_scalar("SELECT dead_reason FROM postrider.deliveries")
            .fetch_one(database.pool())
            .await
            .expect("one");
        assert_eq!(recorded, reason);
    }
}

#[tokio::test]
async fn a_410_also_disables_the_endpoint() {
    let world = world(hasty(3)).await;
    world.receiver.answer_with(|_| Answer::status(410));
    let event = new_event("order.created", "{}", None);
    world.engine.publish(&world.application, event).await.expect("the event is accepted");
    let disabled = "SELECT count(*) FROM postrider.endpoints WHERE disabled_reason = 'gone'";
    wait_for_count(world.database.pool(), disabled, 1).await;
    let event = new_event("order.created", "{}", None);
    let accepted = world.engine.publish(&world.application, event).await.expect("the event is accepted");
    assert_eq!(accepted.deliveries, 0, "a disabled endpoint gets no new deliveries");
    world.engine.drain().await;
    assert_eq!(world.receiver.requests().len(), 1);
}

#[tokio::test]
async fn racing_publishes_of_one_key_make_one_event_on_two_instances() {
    let world = world(Policy::DEFAULT).await;
    let other = Running::start(&world.database);
    let publish = |number: usize| {
        let engine = if number.is_multiple_of(2) { &world.engine } else { &other };
        engine.publish(&world.application, new_event("order.created", "{}", Some("order-42")))
    };
    let answers = futures::future::join_all((0..50).map(publish)).await;
    let accepted: Vec<_> =
        answers.into_iter().map(|answer| answer.expect("every publish is answered")).collect();
    assert_eq!(accepted.iter().filter(|accepted| !accepted.duplicate).count(), 1);
    let ids: std::collections::HashSet<_> = accepted.iter().map(|accepted| accepted.event_id).collect();
    assert_eq!(ids.len(), 1);

    let clash = other.publish(&world.application, new_event("order.created", "{ }", Some("order-42"))).await;
    assert!(matches!(clash, Err(Refusal::Conflict { .. })), "{clash:?}");
    wait_until_nothing_is_open(world.database.pool()).await;
    world.engine.drain().await;
    other.drain().await;
    assert_eq!(world.receiver.requests().len(), 1);
}

#[tokio::test]
async fn a_burst_over_several_endpoints_arrives_whole() {
    let world = world(Policy::DEFAULT).await;
    let second = world.tenant.endpoint("audit", &world.receiver.url("/audit")).create().await;
    world.application.sends(&["*"], &second).await;
    let (report, _database) = world.publish_and_check(&["{\"burst\":true}"; 200]).await;
    assert_eq!((report.events, report.delivered, report.open), (200, 400, 0));
    assert_eq!(report.repeated_requests, 0, "nothing was sent twice without a reason");
}
