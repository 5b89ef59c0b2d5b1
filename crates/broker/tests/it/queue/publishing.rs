//! What the broker is given, and what it is not: messages that outlive it, messages that only a newer program knows, and
//! messages that it refuses.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use lapin::options::BasicGetOptions;
use postrider_broker::rabbit::RabbitMq;
use postrider_core::{queue::Queue as _, retry::Policy};
use postrider_store::instances::Role;
use postrider_testkit::rabbitmq::{Broker, Depth};
use tokio::task::JoinSet;
use tracing::subscriber::DefaultGuard;

use super::{
    strangers::channel,
    world::{Mode, World, wait_until_up},
};

const WAITING: &str = "SELECT count(*) FROM postrider.outbox";

/// A quorum queue writes everything down; other queues, and whoever moves a message on, go by its delivery mode.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_confirmed_outlives_the_broker_and_says_that_it_is_to() {
    const PERSISTENT: u8 = 2;
    let (mut node, broker) = Broker::own_node().await;
    let world = World::over(Some(broker), Policy::DEFAULT).await;
    let api = world.engine(Role::Api);
    world.publish(&api, 1).await;
    world.wait_for_count(WAITING, 0).await;
    // Else it would see to what is lost.
    api.drain().await;
    node.kill().await;
    node.start().await;
    let depth = world.broker.as_ref().expect("a broker").depth("postrider.ready").await;
    assert_eq!(depth, Depth { ready: 1, unacknowledged: 0 });
    let (_connection, channel) = channel(&world).await;
    let got = channel.basic_get("postrider.ready".into(), BasicGetOptions::default()).await;
    let message = got.expect("the broker answers").expect("a message");
    assert_eq!(*message.properties.delivery_mode(), Some(PERSISTENT));
}

/// Processes of two versions share an outbox while one takes the other's place.
#[tokio::test(flavor = "multi_thread")]
async fn what_only_a_newer_program_knows_is_left_to_it_and_holds_up_nobody() {
    let world = World::new(Mode::RabbitMq).await;
    let api = world.engine(Role::Api);
    world.publish(&api, 1).await;
    world.wait_for_count(WAITING, 0).await;
    let broker = world.broker.as_ref().expect("a broker");
    let before = broker.connections().await;
    // Together they are one window, and the newer one's is at its head.
    sqlx::query(
        "INSERT INTO postrider.outbox (route, payload, deliveries)
         VALUES ('postrider.newer', '', 0), ('postrider.dead', '', 0)",
    )
    .execute(world.database.pool())
    .await
    .expect("two messages");
    world.wait_for_count(WAITING, 1).await;
    assert_eq!(broker.depth("postrider.dead").await.ready, 1);
    let held =
        "SELECT count(*) FROM postrider.outbox WHERE route = 'postrider.newer' AND claimed_until > now()";
    assert_eq!(world.count(held).await, 1, "it is free for others when its hold has ended");
    for _ in 0..3 {
        world.publish(&api, 1).await;
        world.wait_for_count(WAITING, 1).await;
    }
    assert_eq!(broker.connections().await, before, "nothing was refused");
    api.drain().await;
}

/// What is told from now on, by this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
        let writer = log.clone();
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn lines_with(&self, text: &str) -> Vec<String> {
        let written = self.0.lock().expect("no writer panics");
        let lines = String::from_utf8_lossy(&written);
        lines.lines().filter(|line| line.contains(text)).map(ToOwned::to_owned).collect()
    }
}

/// Looks at a process while it tries and tries to publish: it never takes the broker for one that can be used, and has told
/// the cause once.
async fn expect_down(client: &RabbitMq, log: &Log, cause: &str) {
    while log.lines_with("the broker is still away").len() < 3 {
        assert!(!client.is_up(), "nothing can be published");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let away = log.lines_with("the broker is away");
    assert!(away.len() == 1 && away[0].contains(cause), "{away:?}");
    assert_eq!(log.lines_with("the broker is back"), Vec::<String>::new());
}

/// An account may connect, find its queues, and not write: who looks must not be told that all is well until something is
/// to be published.
#[tokio::test]
async fn a_broker_that_takes_no_messages_from_this_account_is_not_up_and_says_why() {
    let (log, _logging) = Log::start();
    let world = World::new(Mode::RabbitMq).await;
    let mut tasks = JoinSet::new();
    let permitted = world.client(None);
    tasks.spawn(Arc::clone(&permitted).publish());
    wait_until_up(&permitted).await;
    let broker = world.broker.as_ref().expect("a broker");
    broker.permit_writing("^postrider").await;

    let client = world.client(None);
    tasks.spawn(Arc::clone(&client).publish());
    expect_down(&client, &log, "ACCESS_REFUSED").await;
    broker.permit_writing(".*").await;
    wait_until_up(&client).await;
}

#[tokio::test]
async fn a_broker_with_a_queue_that_takes_nothing_is_not_up_and_comes_back() {
    let (log, _logging) = Log::start();
    let world = World::new(Mode::RabbitMq).await;
    let broker = world.broker.as_ref().expect("a broker");
    let add = async || {
        let add =
            "INSERT INTO postrider.outbox (route, payload, deliveries) VALUES ('postrider.ready', '', 0)";
        sqlx::query(add).execute(world.database.pool()).await.expect("a message");
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(world.client(None).publish());
    add().await;
    world.wait_for_count(WAITING, 0).await;
    broker.set_full("postrider.ready", true).await;
    tasks.shutdown().await;

    add().await;
    let client = world.client(None);
    tasks.spawn(Arc::clone(&client).publish());
    expect_down(&client, &log, "postrider.ready").await;
    broker.set_full("postrider.ready", false).await;
    wait_until_up(&client).await;
    world.wait_for_count(WAITING, 0).await;
}
