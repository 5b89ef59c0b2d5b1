//! What becomes of a message once it has arrived: when it is acknowledged, how often it may come, and who takes what
//! its receiver has no room for.

use std::{sync::Arc, time::Duration};

use lapin::options::{BasicGetOptions, BasicNackOptions};
use postrider_broker::rabbit::{Address, RabbitMq, Settings};
use postrider_core::queue::{Queue as _, write};
use postrider_store::instances::Role;
use postrider_testkit::{
    answer::Answer,
    clock::{Clock as _, SystemClock},
    rabbitmq::Broker,
    receiver::Receiver,
    running::{Options, Running, loopback_http},
    scenario::new_event,
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    outages::{SOON, wait_until_the_broker_is_used},
    strangers::{channel, nowhere, put},
    world::{Mode, World},
};

/// So often it is not taken for one that ends its workers.
const ENDURED: usize = 50;
/// Requests that a worker has at once: fewer than a message names deliveries.
const CONCURRENCY: u16 = 2;
const ENDPOINTS: usize = 12;
/// Between two looks.
const POLL: Duration = Duration::from_millis(10);
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

/// A process's end of the broker, which nothing is taken from but by the test.
async fn client(world: &World, draining: CancellationToken) -> (Arc<RabbitMq>, JoinSet<()>) {
    let broker = world.broker.as_ref().expect("a broker");
    let client = RabbitMq::new(Settings {
        address: Address::new(&broker.url(), None).expect("the URL of a broker"),
        options: world.database.url().parse().expect("a database URL"),
        sends_at_once: Some(1),
        draining,
    });
    let mut tasks = JoinSet::new();
    for (_, task) in client.tasks() {
        tasks.spawn(async move {
            let Ok(()) = task.await;
        });
    }
    while !client.is_up() {
        tokio::time::sleep(POLL).await;
    }
    (client, tasks)
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
    let (client, mut tasks) = client(&world, draining.clone()).await;
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
        ended.expect("in order");
    }
    broker.until("postrider.ready", |depth| depth.unacknowledged == 0).await;
    let left = broker.depth("postrider.ready").await.ready;
    assert_eq!(left, 2 + more, "those that nobody has looked at");
}

/// Whatever waits at the broker: here nobody takes from this process what it has received.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_has_a_bounded_number_of_messages_in_hand() {
    const MESSAGES: u64 = 100;
    /// For one request at a time.
    const IN_HAND: u64 = 68;
    let world = World::new(Mode::RabbitMq).await;
    let broker = world.broker.as_ref().expect("a broker");
    let (_client, _tasks) = client(&world, CancellationToken::new()).await;
    let (_connection, channel) = channel(&world).await;
    for _ in 0..MESSAGES {
        put(&channel, &write(&[nowhere(&world)]).next().expect("a message")).await;
    }
    broker
        .until("postrider.ready", |depth| {
            (depth.unacknowledged, depth.ready) == (IN_HAND, MESSAGES - IN_HAND)
        })
        .await;
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
