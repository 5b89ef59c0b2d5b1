//! What happens when RabbitMQ fails: deliveries go on, and everything is accounted for.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use postrider_core::retry::Policy;

use postrider_store::instances::Role;
use postrider_testkit::{
    answer::Answer,
    clock::{Clock as _, SystemClock},
    rabbitmq::Broker,
    receiver::Receiver,
    running::Running,
};
use tokio::task::JoinSet;

use super::{
    deaf::{Deaf, Lost},
    world::{Mode, World, wait_until_up},
};

/// Less than the table would wait for the messages.
pub(super) const SOON: Duration = Duration::from_millis(1_500);

/// With chance or without, the first part of it that is waited for is an hour.
const TWO_HOURS: Duration = Duration::from_secs(7_200);

fn every(delay: Duration) -> Policy {
    Policy::new(5, Duration::from_secs(100_000), delay, delay).expect("a policy within bounds")
}

/// Waits until a delivery that is accepted now goes the quick way, without a look into the table.
pub(super) async fn wait_until_the_broker_is_used(world: &World, engine: &Running) {
    for _ in 0..60 {
        let since = SystemClock::new();
        let before = world.receiver.requests().len();
        world.publish(engine, 1).await;
        world.receiver.wait_for(before + 1).await;
        world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
        if since.monotonic() < SOON {
            return;
        }
    }
    panic!("the broker is not used");
}

/// While the broker cannot be used, what is accepted is sent at once: neither left to its messages first nor found by a
/// poll.
async fn expect_the_table_to_be_quick(world: &World, engine: &Running) {
    const ONE_AFTER_ANOTHER: usize = 10;
    let since = SystemClock::new();
    for _ in 0..ONE_AFTER_ANOTHER {
        let before = world.receiver.requests().len();
        world.publish(engine, 1).await;
        world.receiver.wait_for(before + 1).await;
    }
    let waited = since.monotonic();
    assert!(waited < Duration::from_secs(5), "{waited:?} for {ONE_AFTER_ANOTHER} deliveries");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_broker_holds_up_nothing_and_is_used_again() {
    let (mut node, broker) = Broker::own_node().await;
    let world = World::over(Some(broker), Policy::DEFAULT).await;
    let engine = world.engine(Role::All);
    wait_until_the_broker_is_used(&world, &engine).await;
    for is_in_order in [true, false] {
        if is_in_order {
            node.stop().await;
        } else {
            node.kill().await;
        }
        let before = world.receiver.requests().len();
        world.publish(&engine, 20).await;
        world.receiver.wait_for(before + 20).await;
        expect_the_table_to_be_quick(&world, &engine).await;
        node.start().await;
        world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
        wait_until_the_broker_is_used(&world, &engine).await;
    }
    world.check().await;
    assert_eq!(world.repeats(), 0, "what was sent through the table is not sent once more");
    engine.drain().await;
}

/// An outage may last for hours.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_broker_is_away_the_outbox_is_kept_small() {
    let (mut node, broker) = Broker::own_node().await;
    let world = World::over(Some(broker), every(Duration::from_millis(10))).await;
    let engine = world.engine(Role::All);
    wait_until_the_broker_is_used(&world, &engine).await;
    node.stop().await;
    world.publish(&engine, 20).await;
    world.check().await;
    let waiting = "SELECT count(*) FROM postrider.outbox";
    assert!(world.count(waiting).await > 0);
    sqlx::query("UPDATE postrider.outbox SET created_at = created_at - interval '1 minute'")
        .execute(world.database.pool())
        .await
        .expect("a minute passes");
    world.wait_for_count(waiting, 0).await;
    node.start().await;
    wait_until_the_broker_is_used(&world, &engine).await;
    engine.drain().await;
}

/// Its new self has neither queues nor messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_broker_hears_of_every_open_delivery_once_more() {
    let (mut node, broker) = Broker::own_node().await;
    let world = World::over(Some(broker), every(TWO_HOURS)).await;
    let engine = world.engine(Role::All);
    world.receiver.answer_with(|_| Answer::status(503));
    world.publish(&engine, 30).await;
    world.wait_for_count("SELECT count(*) FROM postrider.delivery_queue WHERE state = 'scheduled'", 30).await;
    world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
    node.wipe().await;
    let announced =
        "SELECT count(*) FROM postrider.broker WHERE swept_at IS NOT NULL AND swept_delivery IS NOT NULL";
    world.wait_for_count(announced, 1).await;
    world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
    // Those of one wait share messages.
    world.wait_for_depth("postrider.retry.1h", 1).await;

    world.receiver.answer_with(|_| Answer::ok());
    sqlx::query("UPDATE postrider.delivery_queue SET due_at = now()")
        .execute(world.database.pool())
        .await
        .expect("the wait is over");
    world.check().await;
    engine.drain().await;
}

/// A process that publishes by a way on which answers can get lost, and a worker that has a way of its own. The broker is used.
async fn over_a_way_that_loses() -> (World, Deaf, Running, Running) {
    let broker = Broker::shared_vhost().await;
    let (broker_url, address) = (broker.url(), address_of(&broker.url()));
    let deaf = Deaf::before(address).await;
    let world = World::over(Some(broker), Policy::DEFAULT).await;
    let api = world.engine_at(Role::Api, Some(deaf.url(&broker_url, address)));
    let worker = world.engine(Role::Worker);
    wait_until_the_broker_is_used(&world, &api).await;
    (world, deaf, api, worker)
}

/// The broker has the message, and its publisher does not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_confirm_was_lost_is_published_again_and_delivered_once() {
    let (world, deaf, api, worker) = over_a_way_that_loses().await;
    worker.drain().await;

    deaf.lose(Lost::Everything);
    // One message.
    world.publish(&api, 1).await;
    let broker = world.broker.as_ref().expect("a broker");
    broker.until("postrider.ready", |depth| depth.ready == 1).await;
    // The broker is taken for silent, and the message given back, well before the end of its hold.
    world.wait_for_count("SELECT count(*) FROM postrider.outbox WHERE claimed_until IS NOT NULL", 0).await;
    deaf.lose(Lost::Nothing);
    world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
    let depth = broker.depth("postrider.ready").await;
    assert!(depth.ready >= 2, "published once in vain, and once more: {depth:?}");
    let worker = world.engine(Role::Worker);
    world.check().await;
    world.wait_for_depth("postrider.ready", 0).await;
    assert_eq!(world.repeats(), 0);
    worker.drain().await;
    api.drain().await;
}

/// As one whose queue has lost its leader.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_broker_does_not_confirm_does_not_fill_the_outbox() {
    let (world, deaf, api, worker) = over_a_way_that_loses().await;
    deaf.lose(Lost::Confirms);
    world.publish(&api, 1).await;
    world.wait_for_count("SELECT count(*) FROM postrider.outbox", 1).await;
    sqlx::query("UPDATE postrider.outbox SET created_at = created_at - interval '1 minute'")
        .execute(world.database.pool())
        .await
        .expect("a minute passes");
    let since = SystemClock::new();
    world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
    // Sooner than it is taken for silent.
    let waited = since.monotonic();
    assert!(waited < Duration::from_secs(6), "{waited:?}");

    deaf.lose(Lost::Nothing);
    wait_until_the_broker_is_used(&world, &api).await;
    world.check().await;
    worker.drain().await;
    api.drain().await;
}

fn address_of(url: &str) -> SocketAddr {
    let after = url.rsplit_once('@').expect("credentials").1;
    after.split('/').next().expect("a host").parse().expect("an address")
}

/// The broker confirms what it has no queue for, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_finds_no_queue_stays_and_the_queue_is_made_again() {
    let world = World::new(Mode::RabbitMq).await;
    let api = world.engine(Role::Api);
    world.publish(&api, 1).await;
    world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
    let broker = world.broker.as_ref().expect("a broker");
    let epoch = "SELECT hashtext(epoch::text)::bigint FROM postrider.broker";
    let before = world.count(epoch).await;
    broker.delete_queue("postrider.ready").await;
    world.publish(&api, 5).await;
    // All six: the first one's message went with the queue.
    let announced =
        "SELECT count(*) FROM postrider.broker WHERE swept_at IS NOT NULL AND swept_delivery IS NOT NULL";
    world.wait_for_count(announced, 1).await;
    world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
    assert_ne!(world.count(epoch).await, before, "it began anew");
    assert_eq!(marks(&world).await.len(), 1, "no mark of an epoch that is over");
    assert!(broker.depth("postrider.ready").await.ready >= 1);
    let worker = world.engine(Role::Worker);
    let report = world.check().await;
    assert_eq!((report.delivered, world.repeats()), (6, 0));
    worker.drain().await;
    api.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_stops_the_messages_and_not_the_deliveries() {
    let (node, broker) = Broker::own_node().await;
    let world = World::over(Some(broker), Policy::DEFAULT).await;
    let engine = world.engine(Role::All);
    wait_until_the_broker_is_used(&world, &engine).await;
    node.raise_memory_alarm().await;
    let before = world.receiver.requests().len();
    world.publish(&engine, 50).await;
    world.receiver.wait_for(before + 50).await;
    expect_the_table_to_be_quick(&world, &engine).await;
    node.clear_memory_alarm().await;
    world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
    wait_until_the_broker_is_used(&world, &engine).await;
    world.check().await;
    assert_eq!(world.repeats(), 0);
    engine.drain().await;
}

/// With one queue for all waits, what waits for five seconds would come after the hour.
#[tokio::test(flavor = "multi_thread")]
async fn an_hour_at_the_head_does_not_hold_up_five_seconds() {
    let world = World::with_retry(Mode::RabbitMq, every(Duration::from_secs(5))).await;
    let failing = Receiver::start().await;
    failing.answer_with(|_| Answer::status(503));
    let other = world.tenant.application("slow").await;
    let hourly = world.tenant.endpoint("hourly", &failing.url("/")).retry(every(TWO_HOURS));
    other.sends(&["*"], &hourly.create().await).await;
    let engine = world.engine(Role::All);
    wait_until_the_broker_is_used(&world, &engine).await;
    let event = postrider_testkit::scenario::new_event("order.created", "{}", None);
    engine.publish(&other, event).await.expect("the event is accepted");
    world.wait_for_depth("postrider.retry.1h", 1).await;

    world.receiver.queue([Answer::status(503)]);
    let before = world.receiver.requests().len();
    world.publish(&engine, 1).await;
    world.receiver.wait_for(before + 1).await;
    let since = SystemClock::new();
    world.receiver.wait_for(before + 2).await;
    let waited = since.monotonic();
    assert!((Duration::from_millis(2_400)..Duration::from_secs(7)).contains(&waited), "{waited:?}");
    world.wait_for_depth("postrider.retry.1h", 1).await;
}

/// It closes the channel of a consumer that keeps a message for too long, and brings all of its messages again.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_cut_off_goes_on_and_repeats_nothing() {
    let (node, broker) = Broker::own_node().await;
    node.set_consumer_timeout(Duration::from_millis(800)).await;
    let world = World::over(Some(broker), Policy::DEFAULT).await;
    world.receiver.answer_with(|_| Answer::ok().late(Duration::from_secs(3)));
    let engine = world.engine(Role::All);
    world.publish(&engine, 5).await;
    world.receiver.wait_for(1).await;
    let report = world.check().await;
    assert_eq!((report.delivered, world.repeats()), (5, 0));
    world.receiver.answer_with(|_| Answer::ok());
    node.set_consumer_timeout(Duration::from_secs(60)).await;
    wait_until_the_broker_is_used(&world, &engine).await;
    engine.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_purged_is_found_in_the_table() {
    let world = World::new(Mode::RabbitMq).await;
    let api = world.engine(Role::Api);
    world.publish(&api, 20).await;
    world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
    world.broker.as_ref().expect("a broker").purge_queue("postrider.ready").await;
    let worker = world.engine(Role::Worker);
    let report = world.check().await;
    assert_eq!((report.delivered, world.repeats()), (20, 0));
    worker.drain().await;
    api.drain().await;
}

/// The queues by which the broker is known.
async fn marks(world: &World) -> Vec<String> {
    let queues = world.broker.as_ref().expect("a broker").depths().await;
    queues.into_keys().filter(|queue| queue.starts_with("postrider.epoch.")).collect()
}

/// Its queues have the right names, but nobody knows whose messages they held.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_the_mark_is_taken_for_another_one() {
    let world = World::new(Mode::RabbitMq).await;
    let api = world.engine(Role::Api);
    // All that was open before it was known has been announced.
    world.wait_for_count("SELECT count(*) FROM postrider.broker WHERE swept_at IS NOT NULL", 1).await;
    world.publish(&api, 1).await;
    world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
    let broker = world.broker.as_ref().expect("a broker");
    let before = marks(&world).await;
    assert_eq!(before.len(), 1);
    broker.delete_queue(&before[0]).await;
    broker.close_connections().await;
    // What it has is not trusted: the delivery is named by a second message.
    broker.until("postrider.ready", |depth| depth.ready == 2).await;
    let after = marks(&world).await;
    assert_eq!(after.len(), 1);
    assert_ne!(after, before);
    api.drain().await;
}

/// Another process found the broker without the first one's mark before this was made, began an epoch of its own, and had
/// nothing to delete yet.
#[tokio::test(flavor = "multi_thread")]
async fn the_mark_of_an_epoch_that_ended_meanwhile_does_not_stay() {
    let world = World::new(Mode::RabbitMq).await;
    let another = "CREATE FUNCTION another() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                       UPDATE postrider.broker SET epoch = gen_random_uuid();
                       RETURN NULL;
                   END $$;
                   CREATE TRIGGER another AFTER INSERT ON postrider.broker
                       FOR EACH ROW EXECUTE FUNCTION another();";
    sqlx::raw_sql(another).execute(world.database.pool()).await.expect("the trigger is made");
    let client = world.client(None);
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&client).publish());
    wait_until_up(&client).await;
    assert_eq!(marks(&world).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_connections_are_opened_again() {
    let world = World::new(Mode::RabbitMq).await;
    let engine = world.engine(Role::All);
    for _ in 0..3 {
        wait_until_the_broker_is_used(&world, &engine).await;
        world.broker.as_ref().expect("a broker").close_connections().await;
        world.publish(&engine, 10).await;
    }
    world.check().await;
    assert_eq!(world.repeats(), 0);
    engine.drain().await;
}
