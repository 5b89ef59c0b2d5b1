//! Approved vendors: notifications, methods and success codes of an endpoint's own, and endpoints that are deleted.

use std::time::Duration;

use postrider_core::{method::Method, retry::Policy};
use postrider_store::ingest::Refusal;
use postrider_testkit::{
    answer::Answer,
    postgres::Database,
    receiver::Receiver,
    running::Running,
    scenario::{Application, Scenario, Tenant, new_event, new_notification},
};
use sqlx::PgPool;

use crate::delivery::{is_signed_by, wait_for_count, wait_until_nothing_is_open};

struct World {
    database: Database,
    receiver: Receiver,
    engine: Running,
    tenant: Tenant,
    orders: Application,
    billing: Application,
}

async fn world() -> World {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let engine = Running::start(&database);
    let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
    let (orders, billing) = (tenant.application("orders").await, tenant.application("billing").await);
    World { database, receiver, engine, tenant, orders, billing }
}

/// How the only delivery ended: outcome, reason, status of its last attempt.
async fn ending(pool: &PgPool) -> (String, Option<String>, Option<i16>) {
    sqlx::query_as(
        "SELECT d.outcome, d.dead_reason, a.status_code
           FROM postrider.deliveries d LEFT JOIN postrider.attempts a USING (tenant_id, delivery_id, attempt_number)",
    )
    .fetch_one(pool)
    .await
    .expect("one delivery has ended")
}

#[tokio::test]
async fn a_notification_is_sent_as_its_endpoint_asks_and_names_the_registry_version() {
    let world = world().await;
    let endpoint = world.tenant.endpoint("sms", &world.receiver.url("/v2/messages"));
    let endpoint = endpoint.method(Method::Put).query("account=7781").approved_for(&[&world.orders]);
    let endpoint = endpoint.create().await;
    let body: &[u8] = b"\x00\xff<message>\r\n</message>";
    let accepted = world
        .engine
        .publish(&world.orders, new_notification(&endpoint, "text/xml; charset=ISO-8859-1", body))
        .await
        .expect("the notification is accepted");
    assert_eq!(accepted.deliveries, 1);

    let request = world.receiver.wait_for(1).await.remove(0);
    assert_eq!((request.method(), request.target()), ("PUT", "/v2/messages?account=7781"));
    assert_eq!(request.header("content-type"), Some("text/xml; charset=ISO-8859-1"));
    assert_eq!(&*request.body, body, "byte for byte");
    assert_eq!(request.header("postrider-event-type"), Some("postrider.notification"));
    assert!(is_signed_by(&request, &endpoint));

    wait_until_nothing_is_open(world.database.pool()).await;
    let version: Option<i64> = sqlx::query_scalar("SELECT registry_version FROM postrider.attempts")
        .fetch_one(world.database.pool())
        .await
        .expect("one attempt");
    assert_eq!(version, Some(1));
}

#[tokio::test]
async fn an_endpoint_says_which_answers_are_a_success_but_never_a_redirect() {
    for (codes, status, expected) in [
        ("200-299", 204, ("delivered", None)),
        ("200-204,409", 409, ("delivered", None)),
        ("202", 200, ("dead_lettered", Some("rejected"))),
        ("409", 301, ("dead_lettered", Some("rejected"))),
        ("409", 410, ("dead_lettered", Some("endpoint_gone"))),
        ("409", 503, ("dead_lettered", Some("attempts_exhausted"))),
    ] {
        let world = world().await;
        let delay = Duration::from_millis(1);
        let hasty = Policy::new(2, Duration::from_secs(60), delay, delay).expect("a policy within bounds");
        let endpoint = world.tenant.endpoint("sms", &world.receiver.url("/")).success_codes(codes);
        let endpoint = endpoint.retry(hasty).approved_for(&[&world.orders]).create().await;
        world.receiver.answer_with(move |_| Answer::status(status).header("Location", "http://127.0.0.1:1/"));
        let notification = new_notification(&endpoint, "text/plain", "hello");
        world.engine.publish(&world.orders, notification).await.expect("it is accepted");
        wait_until_nothing_is_open(world.database.pool()).await;
        let (outcome, reason, seen) = ending(world.database.pool()).await;
        assert_eq!((outcome.as_str(), reason.as_deref()), expected, "{status} under {codes}");
        assert_eq!(seen, Some(i16::try_from(status).expect("a status")));
    }
}

#[tokio::test]
async fn only_an_approved_endpoint_that_lists_the_application_can_be_addressed() {
    let world = world().await;
    let url = world.receiver.url("/");
    let ordinary = world.tenant.endpoint("ordinary", &url).create().await;
    let approved = world.tenant.endpoint("approved", &url).approved_for(&[&world.orders]).create().await;
    world.billing.sends(&["*"], &ordinary).await;
    world.billing.sends(&["*"], &approved).await;
    let notify = |application, endpoint| {
        world.engine.publish(application, new_notification(endpoint, "text/plain", "hello"))
    };
    assert_eq!(notify(&world.billing, &approved).await, Err(Refusal::EndpointUnavailable), "not listed");
    assert_eq!(notify(&world.billing, &ordinary).await, Err(Refusal::EndpointUnavailable), "not approved");
    assert!(notify(&world.orders, &approved).await.is_ok());
    approved.set_enabled(false).await;
    assert_eq!(notify(&world.orders, &approved).await, Err(Refusal::EndpointUnavailable), "disabled");

    // A subscription is no way around the list.
    approved.set_enabled(true).await;
    world.orders.sends(&["*"], &approved).await;
    let event = || new_event("order.created", "{}", None);
    let reached = world.engine.publish(&world.billing, event()).await.expect("it is accepted");
    assert_eq!(reached.deliveries, 1, "the ordinary endpoint alone");
    let reached = world.engine.publish(&world.orders, event()).await.expect("it is accepted");
    assert_eq!(reached.deliveries, 1, "the approved one lists this application");
}

#[tokio::test]
async fn deleting_an_endpoint_cancels_what_waits_for_its_next_try() {
    let world = world().await;
    let hour = Duration::from_secs(3_600);
    let patient = Policy::new(5, 10 * hour, hour, hour).expect("a policy within bounds");
    let doomed =
        world.tenant.endpoint("doomed", &world.receiver.url("/doomed")).retry(patient).create().await;
    let other = world.tenant.endpoint("other", &world.receiver.url("/other")).retry(patient).create().await;
    for endpoint in [&doomed, &other] {
        world.orders.sends(&["*"], endpoint).await;
    }
    world.receiver.answer_with(|_| Answer::status(503));
    world.orders.publish("order.created", "{}").await;
    world.receiver.wait_for(2).await;
    let pool = world.database.pool();
    let scheduled = "SELECT count(*) FROM postrider.delivery_queue WHERE state = 'scheduled'";
    wait_for_count(pool, scheduled, 2).await;

    doomed.delete().await;
    let drained = "SELECT count(*) FROM postrider.endpoints WHERE drained_at IS NOT NULL AND name = 'doomed'";
    wait_for_count(pool, drained, 1).await;
    wait_for_count(pool, scheduled, 1).await;
    let (outcome, reason, _) = ending(pool).await;
    assert_eq!((outcome.as_str(), reason.as_deref()), ("dead_lettered", Some("endpoint_deleted")));
    let accepted = world.engine.publish(&world.orders, new_event("order.created", "{}", None)).await;
    assert_eq!(
        accepted.expect("it is accepted").deliveries,
        1,
        "its subscription is gone, the other's is not"
    );
    world.receiver.wait_for(3).await;
    world.engine.drain().await;
    let sent: Vec<_> = world.receiver.requests().iter().map(|request| request.target().to_owned()).collect();
    assert_eq!(sent.iter().filter(|target| *target == "/doomed").count(), 1, "{sent:?}");
}
