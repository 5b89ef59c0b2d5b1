//! What tests rely on when they take a RabbitMQ.

use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::tcp::OwnedTLSConfig;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionBuilder, ConnectionProperties};
use postrider_testkit::authority::Authority;
use postrider_testkit::rabbitmq::{Broker, Depth};

const QUEUE: &str = "postrider.ready";

async fn connect(url: &str) -> lapin::Result<Connection> {
    Connection::connect(url, ConnectionProperties::default()).await
}

/// A channel on a connection of its own, with confirms and the queue.
async fn open(broker: &Broker) -> (Connection, Channel) {
    let connection = connect(&broker.url()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(QUEUE.into(), options, arguments).await.unwrap();
    (connection, channel)
}

async fn publish(channel: &Channel, exchange: &str) -> Confirmation {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = BasicProperties::default().with_delivery_mode(2);
    let sent = channel.basic_publish(exchange.into(), QUEUE.into(), options, b"body", properties).await;
    sent.unwrap().await.unwrap()
}

fn depth(ready: u64, unacknowledged: u64) -> Depth {
    Depth { ready, unacknowledged }
}

/// Processes of the program in which Erlang's nodes look each other up.
fn count_name_servers() -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let names = processes.filter_map(|process| std::fs::read_to_string(process.path().join("comm")).ok());
    names.filter(|name| name.trim() == "epmd").count()
}

#[tokio::test]
async fn virtual_hosts_of_the_shared_node_are_apart() {
    let (first, second) = (Broker::shared_vhost().await, Broker::shared_vhost().await);
    let (_connection, channel) = open(&first).await;
    publish(&channel, "").await;
    assert_eq!(first.depth(QUEUE).await, depth(1, 0));
    assert!(second.depths().await.is_empty());
    assert_eq!((first.connections().await.len(), second.connections().await.len()), (1, 0));

    let url = first.url();
    drop(first);
    assert!(connect(&url).await.is_err(), "it is gone");
    connect(&second.url()).await.unwrap();
}

#[tokio::test]
async fn queues_are_looked_into_and_disturbed() {
    let broker = Broker::shared_vhost().await;
    let (_connection, channel) = open(&broker).await;
    channel
        .queue_bind(
            QUEUE.into(),
            "amq.direct".into(),
            QUEUE.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await
        .unwrap();
    let is_returned = |confirmation: Confirmation| matches!(confirmation, Confirmation::Ack(Some(_)));
    assert!(!is_returned(publish(&channel, "amq.direct").await));
    let got =
        channel.basic_get(QUEUE.into(), lapin::options::BasicGetOptions::default()).await.unwrap().unwrap();
    publish(&channel, "").await;
    assert_eq!(broker.depth(QUEUE).await, depth(1, 1));
    got.acker.ack(BasicAckOptions::default()).await.unwrap();

    broker.unbind_queue(QUEUE).await;
    assert!(is_returned(publish(&channel, "amq.direct").await), "nothing leads there any more");
    assert_eq!(broker.depth(QUEUE).await, depth(1, 0));
    broker.purge_queue(QUEUE).await;
    assert_eq!(broker.depth(QUEUE).await, depth(0, 0));
    broker.delete_queue(QUEUE).await;
    assert!(is_returned(publish(&channel, "").await), "the queue is gone");
    assert!(broker.depths().await.is_empty());

    broker.close_connections().await;
    assert!(channel.basic_get(QUEUE.into(), lapin::options::BasicGetOptions::default()).await.is_err());
}

#[tokio::test]
async fn a_node_of_its_own_keeps_its_messages_through_a_kill_and_loses_them_when_it_is_wiped() {
    let name_servers = count_name_servers();
    let (mut node, broker) = Broker::own_node().await;
    let (_connection, channel) = open(&broker).await;
    publish(&channel, "").await;
    node.kill().await;
    assert!(connect(&broker.url()).await.is_err(), "it is away");
    node.start().await;
    assert_eq!(broker.depth(QUEUE).await, depth(1, 0));
    node.wipe().await;
    assert!(broker.depths().await.is_empty());
    open(&broker).await;
    node.stop().await;
    assert_eq!(count_name_servers(), name_servers, "none was started");
}

#[tokio::test]
async fn a_memory_alarm_blocks_publishers_until_it_is_cleared() {
    let (node, broker) = Broker::own_node().await;
    let (_connection, channel) = open(&broker).await;
    node.raise_memory_alarm().await;
    let mut publishing = std::pin::pin!(publish(&channel, ""));
    assert!(
        tokio::time::timeout(Duration::from_millis(100), &mut publishing).await.is_err(),
        "it is blocked"
    );
    node.clear_memory_alarm().await;
    publishing.await;
    assert_eq!(broker.depth(QUEUE).await, depth(1, 0));
}

#[tokio::test]
async fn a_consumer_that_holds_a_message_for_too_long_loses_its_channel() {
    let (node, broker) = Broker::own_node().await;
    node.set_consumer_timeout(Duration::from_millis(200)).await;
    let (_connection, channel) = open(&broker).await;
    publish(&channel, "").await;
    let options = BasicConsumeOptions::default();
    let mut consumer =
        channel.basic_consume(QUEUE.into(), "slow".into(), options, FieldTable::default()).await.unwrap();
    let mut next = async || tokio::time::timeout(Duration::from_secs(20), consumer.next()).await.unwrap();
    next().await.unwrap().unwrap();
    let closed = next().await;
    assert!(closed.is_none_or(|delivery| delivery.is_err()), "the channel is closed");
    broker.until(QUEUE, |found| found == depth(1, 0)).await;
}

#[tokio::test]
async fn with_tls_its_certificate_is_the_authoritys() {
    let authority = Authority::default();
    let (_node, broker) = Broker::own_node_with_tls(&authority).await;
    let connect = async |authority: &Authority| {
        let tls = OwnedTLSConfig { identity: None, cert_chain: Some(authority.certificate_pem()) };
        let builder = ConnectionBuilder::new()?.with_uri_str(broker.tls_url()).with_tls_config(tls);
        builder.connect().await.map(|_| ())
    };
    connect(&authority).await.unwrap();
    assert!(connect(&Authority::default()).await.is_err(), "another authority did not sign it");
}

#[tokio::test]
async fn a_dropped_node_leaves_nothing() {
    let (node, _broker) = Broker::own_node().await;
    let process = format!("/proc/{}", node.pid().unwrap());
    let home = std::fs::read_link(format!("{process}/cwd")).unwrap();
    drop(node);
    assert!(!Path::new(&process).exists());
    assert!(!home.exists(), "{}", home.display());
}
