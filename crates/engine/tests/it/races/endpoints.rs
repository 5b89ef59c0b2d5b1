//! Endpoints that change or vanish with work open, and what each may have at once.

use postrider_testkit::{
    answer::{Answer, Gate},
    running::{Options, Running},
    scenario::{Endpoint, new_event},
};

use super::{
    DELIVERED, IN_FLIGHT, World,
    batches::{event, submit_under},
    scripted::Scripted,
};

/// A request is answered once the gate opens, and the delivery behind it is claimed and stands in line.
struct InLine {
    world: World,
    engine: Running,
    endpoint: Endpoint,
    gate: Gate,
}

impl InLine {
    /// The one in line gets the answer `next`.
    async fn new(next: Option<Answer>) -> Self {
        let world = World::new().await;
        let (application, mut endpoint) =
            world.pair_with("orders", |endpoint| endpoint.max_in_flight(1)).await;
        let engine = world.start().await;
        let publish = async || {
            engine.publish(&application, new_event("order.created", "{}", None)).await.expect("accepted");
        };
        publish().await;
        world.wait_until(DELIVERED, 1).await;
        let gate = Gate::default();
        world.receiver.queue([Answer::ok().after(&gate)].into_iter().chain(next));
        publish().await;
        world.receiver.wait_for(2).await;
        // Newer than the copy at hand, so that one will be read anew.
        endpoint.rotate(0).await;
        publish().await;
        // The next one is claimed, by hand-off or by its message, and stands in line.
        world.wait_until(IN_FLIGHT, 2).await;
        Self { world, engine, endpoint, gate }
    }
}

#[tokio::test]
async fn a_delivery_whose_event_was_erased_ends_as_a_dead_letter() {
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    application.publish("order.created", "{}").await;
    world.execute("DELETE FROM postrider.events").await;
    let engine = world.start().await;
    let gone = "SELECT count(*) FROM postrider.deliveries WHERE dead_reason = 'body_gone'";
    world.pass_until(gone, 1).await;
    assert!(world.receiver.requests().is_empty());
    assert_eq!(world.count("SELECT count(*) FROM postrider.attempts").await, 1, "it says why");
    drop(engine);
}

/// The receiver answers 410 to a request of before a change.
#[tokio::test]
async fn a_410_about_an_endpoint_that_was_changed_meanwhile_disables_nothing() {
    for is_changed in [true, false] {
        let world = World::new().await;
        let (application, mut endpoint) = world.pair("orders").await;
        let gate = Gate::default();
        world.receiver.queue([Answer::status(410).after(&gate)]);
        let engine = world.start().await;
        engine.publish(&application, new_event("order.created", "{}", None)).await.expect("accepted");
        world.receiver.wait_for(1).await;
        if is_changed {
            endpoint.rotate(0).await;
        }
        gate.open();
        let dead = "SELECT count(*) FROM postrider.deliveries WHERE dead_reason = 'endpoint_gone'";
        world.pass_until(dead, 1).await;
        // The drain waits for endpoints that are being disabled.
        engine.drain().await;
        let disabled = world.count("SELECT count(*) FROM postrider.endpoints WHERE NOT enabled").await;
        assert_eq!(disabled, i64::from(!is_changed), "changed: {is_changed}");
    }
}

/// Between the claim and the request the endpoint was changed: the answer is about what was asked, and counts.
#[tokio::test]
async fn a_410_counts_for_the_version_that_was_asked_though_an_older_one_was_claimed() {
    let InLine { world, engine, mut endpoint, gate } = InLine::new(Some(Answer::status(410))).await;
    endpoint.rotate(0).await;
    gate.open();
    world.receiver.wait_for(3).await;
    world
        .wait_until("SELECT count(*) FROM postrider.deliveries WHERE dead_reason = 'endpoint_gone'", 1)
        .await;
    engine.drain().await;
    assert_eq!(world.count("SELECT count(*) FROM postrider.endpoints WHERE NOT enabled").await, 1);
}

/// The permit is kept until the result is on its way, and nothing is claimed without one.
#[tokio::test]
async fn an_endpoint_has_no_more_requests_at_once_than_it_allows() {
    let world = World::new().await;
    // With a rate there is no line of claimed deliveries.
    let (application, _) =
        world.pair_with("orders", |endpoint| endpoint.max_in_flight(2).rate(1_000_000.0, 1_000)).await;
    let transport = Scripted::answering(|_| 200);
    let engine = world.start_with(transport.clone(), Options::default()).await;
    engine.publish(&application, new_event("order.created", "{}", None)).await.expect("accepted");
    transport.asked(1).await;
    for _ in 0..10 {
        application.publish("order.created", "{}").await;
    }
    // As many as it may, and no more, though the taker then looks often enough to claim them all.
    let mut looks_left = 60;
    while looks_left > 0 {
        let (claimed, sent) = (world.count(IN_FLIGHT).await, transport.requests());
        assert!(claimed <= 2 && sent <= 2, "{claimed} are claimed, {sent} sent");
        // Slowly at first: what is claimed while seconds pass is given back unsent, and its permit before its row.
        world.clock.advance(if sent == 2 { super::STEP } else { super::STEP / 10 });
        looks_left -= usize::from(sent == 2);
    }
    transport.open();
    world.pass_until(DELIVERED, 11).await;
    drop(engine);
}

/// It was claimed before its endpoint was deleted, and waits for the request before it to end.
#[tokio::test]
async fn what_stands_in_line_for_an_endpoint_that_is_deleted_is_not_sent() {
    let InLine { world, engine, endpoint, gate } = InLine::new(None).await;
    endpoint.delete().await;
    gate.open();
    let dead =
        "SELECT count(*) FROM postrider.deliveries d JOIN postrider.attempts a USING (tenant_id, delivery_id)
                 WHERE d.dead_reason = 'endpoint_deleted' AND a.detail = 'the endpoint was deleted'";
    world.wait_until("SELECT count(*) FROM postrider.delivery_queue", 0).await;
    engine.drain().await;
    assert_eq!(world.receiver.requests().len(), 2, "it was not sent");
    assert_eq!(world.count(dead).await, 1);
}

/// The plan in a publisher's hand is from before the deletion.
#[tokio::test]
async fn nothing_new_is_accepted_for_an_endpoint_from_its_deletion_on() {
    let world = World::new().await;
    let (application, endpoint) = world.pair("orders").await;
    let engine = world.start().await;
    let before = application.routing().await;
    endpoint.delete().await;
    let answer = submit_under(&engine, before, event("[1]")).await.expect("answered");
    assert_eq!(answer.expect("accepted").deliveries, 0);
    engine.drain().await;
    assert_eq!(world.count("SELECT count(*) FROM postrider.delivery_queue").await, 0);
}
