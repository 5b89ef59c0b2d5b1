//! What becomes of a message once it has arrived: when it is acknowledged, how often it may come, and who takes what
//! its receiver has no room for.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::FutureExt as _;
use lapin::options::{BasicGetOptions, BasicNackOptions};
use postrider_broker::rabbit::RabbitMq;
use postrider_core::queue::{Queue as _, write};
use postrider_store::instances::Role;
use postrider_testkit::{
    answer::Answer,
    clock::{Clock as _, SystemClock},
    rabbitmq::{Broker, Depth},
    receiver::Receiver,
    running::{Options, Running, loopback_http},
    scenario::new_event,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    outages::{SOON, wait_until_the_broker_is_used},
    strangers::{channel, nowhere, put},
    world::{Mode, World, wait_until_up},
};

/// So often it is not taken for one that ends its workers.
const ENDURED: usize = 50;
/// Requests that a worker has at once: fewer than a message names deliveries.
const CONCURRENCY: u16 = 2;
const ENDPOINTS: usize = 12;
const MESSAGES: u64 = 100;
/// As the broker sees it when a process that sends one request at a time has as many messages as it may have.
const ALL_IN_HAND: Depth = Depth { ready: MESSAGES - 68, unacknowledged: 68 };
const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_message_stays_with_its_receiver_until_the_result_is_durable() {
    let world = World::new(Mode::RabbitMq).await;
    let engine = world.engine(Role::All);
    wait_until_the_broker_is_used(&world, &engine).await;
    world.wait_for_depth("postrider.ready", 0).await;
    world.receiver.answer_with(|_| Answer::ok().late(Duration::from_secs(3)));
    let before = world.receiver.requests().len();
    world.publish(&engine, 1).await;
    world.receiver.wait_for(before + 1).await;
    let depth = world.broker.as_ref().expect("a broker").depth("postrider.ready").await;
    assert_eq!((depth.ready, depth.unacknowledged), (0, 1));
    world.check().await;
    world.wait_for_depth("postrider.ready", 0).await;
    assert_eq!(world.repeats(), 0);
    engine.drain().await;
}

/// The table would make up for one that is acknowledged too early, and for one that is brought again in vain: only the
/// broker shows them.
#[tokio::test(flavor = "multi_thread")]
async fn at_the_drain_what_nobody_has_looked_at_goes_back_and_what_is_in_hand_is_waited_for() {
    /// Far more than come before the drain is known.
    const MOST_BROUGHT: u64 = 50;
    let world = World::new(Mode::RabbitMq).await;
    let broker = world.broker.as_ref().expect("a broker");
    let draining = CancellationToken::new();
    let client = world.client_until(Some(1), draining.clone());
    let mut tasks = JoinSet::new();
    for (_, task) in client.tasks() {
        tasks.spawn(task);
    }
    wait_until_up(&client).await;
    let (_connection, channel) = channel(&world).await;
    let put_one = async || put(&channel, &write(&[nowhere(&world)]).next().expect("a message")).await;
    for _ in 0..4 {
        put_one().await;
    }
    let in_hand = [client.arrival().await, client.arrival().await];
    broker.until("postrider.ready", |depth| (depth.ready, depth.unacknowledged) == (0, 4)).await;
    draining.cancel();
    // What comes before it has said that it takes no more is brought, too.
    let mut more = 0;
    while broker.depth("postrider.ready").await.ready == 0 {
        assert!(more < MOST_BROUGHT, "it takes more");
        put_one().await;
        more += 1;
        broker.until("postrider.ready", |depth| depth.ready + depth.unacknowledged == 4 + more).await;
    }
    drop(in_hand);
    while let Some(ended) = tasks.join_next().await {
        let Ok(()) = ended.expect("in order");
    }
    broker.until("postrider.ready", |depth| depth.unacknowledged == 0).await;
    let left = broker.depth("postrider.ready").await.ready;
    assert_eq!(left, 2 + more, "those that nobody has looked at");
}

/// More messages than a process may have in hand, and one that sends one request at a time, without an engine: nobody takes
/// from it what it has received.
async fn with_more_than_one_may_have(world: &World) -> (Arc<RabbitMq>, JoinSet<Result<(), Infallible>>) {
    let client = world.client(Some(1));
    let mut tasks = JoinSet::new();
    tasks.spawn(Arc::clone(&client).publish());
    tasks.spawn(Arc::clone(&client).consume());
    wait_until_up(&client).await;
    let (_connection, channel) = channel(world).await;
    for _ in 0..MESSAGES {
        put(&channel, &write(&[nowhere(world)]).next().expect("a message")).await;
    }
    (client, tasks)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_has_a_bounded_number_of_messages_in_hand() {
    let world = World::new(Mode::RabbitMq).await;
    let (_client, _tasks) = with_more_than_one_may_have(&world).await;
    let broker = world.broker.as_ref().expect("a broker");
    broker.until("postrider.ready", |depth| depth == ALL_IN_HAND).await;
}

/// The broker brings them again: kept, they would be more with each connection.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_seen_of_a_connection_goes_with_it() {
    let world = World::new(Mode::RabbitMq).await;
    let (client, _tasks) = with_more_than_one_may_have(&world).await;
    let broker = world.broker.as_ref().expect("a broker");
    broker.until("postrider.ready", |depth| depth == ALL_IN_HAND).await;
    for _ in 0..2 {
        let before = broker.connections().await;
        broker.close_connections().await;
        while !broker.connections().await.is_disjoint(&before) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        broker.until("postrider.ready", |depth| depth == ALL_IN_HAND).await;
    }
    let mut in_hand = Vec::new();
    for _ in 0..ALL_IN_HAND.unacknowledged {
        in_hand.push(client.arrival().await);
    }
    assert!(client.arrival().now_or_never().is_none(), "more than the broker has brought");
}

/// As one would that ends every process which reads it; its delivery is found in the table.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_was_brought_too_often_is_set_aside_and_its_delivery_is_sent() {
    let world = World::new(Mode::RabbitMq).await;
    let api = world.engine(Role::Api);
    world.publish(&api, 1).await;
    world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
    let (_connection, channel) = channel(&world).await;
    let mut brought = 0;
    while brought <= ENDURED {
        let got = channel.basic_get("postrider.ready".into(), BasicGetOptions::default()).await;
        if let Some(message) = got.expect("the broker answers") {
            brought += 1;
            let again = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
            channel.basic_nack(message.delivery.delivery_tag, again).await.expect("it goes back");
        }
    }
    let worker = world.engine(Role::Worker);
    world.wait_for_depth("postrider.dead", 1).await;
    world.wait_for_depth("postrider.ready", 0).await;
    let report = world.check().await;
    assert_eq!((report.delivered, world.repeats()), (1, 0));
    worker.drain().await;
    api.drain().await;
}

/// Workers that have little room, and endpoints that one message names all together.
async fn with_little_room(workers: usize) -> (World, Receiver, Vec<Running>) {
    let world = World::new(Mode::RabbitMq).await;
    let mut engines = vec![world.engine(Role::Api)];
    for _ in 0..workers {
        let options = Options {
            role: Role::Worker,
            broker: world.broker.as_ref().map(Broker::url),
            concurrency: CONCURRENCY,
            ..Options::default()
        };
        engines.push(Running::start_with(&world.database, loopback_http(), options));
    }
    wait_until_the_broker_is_used(&world, &engines[0]).await;
    let receiver = Receiver::start().await;
    for number in 0..ENDPOINTS {
        let endpoint = world.tenant.endpoint(&format!("other-{number}"), &receiver.url("/")).create().await;
        world.application.sends(&["*"], &endpoint).await;
    }
    (world, receiver, engines)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_receiver_has_no_room_for_is_sent_as_soon_as_it_has() {
    let (world, receiver, engines) = with_little_room(1).await;
    let since = SystemClock::new();
    world.publish(&engines[0], 1).await;
    receiver.wait_for(ENDPOINTS).await;
    let waited = since.monotonic();
    assert!(waited < SOON, "{waited:?}");
    for engine in engines {
        engine.drain().await;
    }
    world.wait_for_count("SELECT count(*) FROM postrider.delivery_queue", 0).await;
    assert_eq!(receiver.requests().len(), ENDPOINTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_receiver_has_no_room_for_is_sent_by_another() {
    let (world, receiver, engines) = with_little_room(2).await;
    receiver.answer_with(|_| Answer::never());
    let since = SystemClock::new();
    world.publish(&engines[0], 1).await;
    // More than one of them may send.
    receiver.wait_for(usize::from(CONCURRENCY) + 1).await;
    let waited = since.monotonic();
    assert!(waited < SOON, "{waited:?}");
    drop(engines);
}

/// It knows already that it has no room there, and has nothing to tell itself; others are told of each.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_to_a_receiver_that_is_full_for_long_is_sent_by_another() {
    /// Some of them come to the one that is full: the broker gives to each in turn.
    const EVENTS: usize = 6;
    let world = World::new(Mode::RabbitMq).await;
    let (api, full) = (world.engine(Role::Api), world.engine(Role::Worker));
    wait_until_the_broker_is_used(&world, &api).await;
    let receiver = Receiver::start().await;
    let narrow = world.tenant.endpoint("narrow", &receiver.url("/")).max_in_flight(1).create().await;
    world.application.sends(&["*"], &narrow).await;
    receiver.queue([Answer::never()]);
    world.publish(&api, 1).await;
    receiver.wait_for(1).await;

    let another = world.engine(Role::Worker);
    let mut sent = 1;
    // Until the other one hears.
    while sent_after(&world, &api, &receiver, &mut sent).await >= SOON {}
    for _ in 0..EVENTS {
        let waited = sent_after(&world, &api, &receiver, &mut sent).await;
        assert!(waited < SOON, "{waited:?}");
    }
    drop((api, full, another));
}

/// How long an event is on its way.
async fn sent_after(world: &World, api: &Running, receiver: &Receiver, sent: &mut usize) -> Duration {
    let since = SystemClock::new();
    world.publish(api, 1).await;
    *sent += 1;
    receiver.wait_for(*sent).await;
    since.monotonic()
}

/// One request at a time is sent to an endpoint that has not answered yet.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_an_endpoint_that_is_busy_is_left_to_the_table() {
    const WAITING: usize = 5;
    let world = World::new(Mode::RabbitMq).await;
    let (api, worker) = (world.engine(Role::Api), world.engine(Role::Worker));
    wait_until_the_broker_is_used(&world, &api).await;
    let hanging = Receiver::start().await;
    hanging.answer_with(|_| Answer::never());
    let slow = world.tenant.application("slow").await;
    let endpoint = world.tenant.endpoint("hanging", &hanging.url("/")).timeout(MINUTE).create().await;
    slow.sends(&["*"], &endpoint).await;
    let broker = world.broker.as_ref().expect("a broker");
    for _ in 0..=WAITING {
        api.publish(&slow, new_event("order.created", "{}", None)).await.expect("the event is accepted");
        hanging.wait_for(1).await;
        world.wait_for_count("SELECT count(*) FROM postrider.outbox", 0).await;
        // The message of the one that is on its way.
        broker.until("postrider.ready", |depth| (depth.ready, depth.unacknowledged) == (0, 1)).await;
    }
    assert_eq!(hanging.requests().len(), 1);
    drop((api, worker));
}
