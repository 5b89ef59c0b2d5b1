//! Messages that others wrote, and messages that come more than once.

use std::time::Duration;

use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions},
    types::AMQPValue,
};
use postrider_core::queue::{MOST_POINTERS, Pointer, write};
use postrider_store::instances::Role;
use postrider_testkit::{answer::Answer, rabbitmq::Broker};
use uuid::Uuid;

use super::world::{Mode, World};

pub(super) async fn channel(world: &World) -> (Connection, Channel) {
    let url = world.broker.as_ref().map(Broker::url).expect("a broker");
    let connection =
        Connection::connect(&url, ConnectionProperties::default()).await.expect("the broker answers");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    (connection, channel)
}

pub(super) async fn put(channel: &Channel, payload: &[u8]) {
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    let confirm = channel.basic_publish("".into(), "postrider.ready".into(), options, payload, properties);
    confirm.await.expect("it is sent").await.expect("it is confirmed");
}

/// A delivery that does not exist.
pub(super) fn nowhere(world: &World) -> Pointer {
    Pointer {
        tenant_id: Uuid::now_v7().into(),
        endpoint_id: world.endpoint.id,
        delivery_id: Uuid::now_v7().into(),
        attempt_number: u32::MAX,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_can_read_is_set_aside_with_the_reason() {
    let world = World::new(Mode::RabbitMq).await;
    let engine = world.engine(Role::All);
    world.publish(&engine, 1).await;
    world.receiver.wait_for(1).await;
    let (_connection, channel) = channel(&world).await;
    let long = vec![0; 100_000];
    let strange: [&[u8]; 4] = [b"", b"{\"delivery\":\"del_1\"}", &[1, 2, 3], &long];
    for payload in strange {
        put(&channel, payload).await;
    }
    world.wait_for_depth("postrider.dead", 4).await;
    let letter = channel.basic_get("postrider.dead".into(), BasicGetOptions { no_ack: true }).await;
    let letter = letter.expect("the broker answers").expect("a message");
    let headers = letter.properties.headers().as_ref().expect("headers").inner();
    let reason = AMQPValue::LongString("the message is empty".into());
    assert_eq!(headers.get("x-postrider-reason"), Some(&reason));
    world.publish(&engine, 5).await;
    world.check().await;
    engine.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pointers_to_nothing_and_repeated_messages_send_nothing_twice() {
    let world = World::new(Mode::RabbitMq).await;
    let engine = world.engine(Role::All);
    let nowhere = nowhere(&world);
    let (_connection, channel) = channel(&world).await;
    world.publish(&engine, 10).await;
    world.receiver.wait_for(10).await;
    // Long enough for the repeated messages to come while these are on their way.
    world.receiver.answer_with(|_| Answer::ok().late(Duration::from_secs(2)));
    world.publish(&engine, 3).await;
    world.receiver.wait_for(11).await;
    for payload in write(&[nowhere; MOST_POINTERS + 3]) {
        put(&channel, &payload).await;
    }
    // Each as it may be: open, on its way, or ended.
    let rows: Vec<(Uuid, Uuid)> = sqlx::query_as("SELECT tenant_id, event_id FROM postrider.events")
        .fetch_all(world.database.pool())
        .await
        .expect("the events");
    let first = std::num::NonZeroU16::MIN;
    let pointers: Vec<Pointer> = rows
        .into_iter()
        .flat_map(|(tenant, event)| {
            let delivery_id = postrider_core::id::EventId::from_uuid(event).delivery(first);
            (0..3).map(move |attempt_number| Pointer {
                tenant_id: tenant.into(),
                delivery_id,
                attempt_number,
                ..nowhere
            })
        })
        .collect();
    for _ in 0..5 {
        for payload in write(&pointers) {
            put(&channel, &payload).await;
        }
    }
    world.wait_for_depth("postrider.ready", 0).await;
    let report = world.check().await;
    assert_eq!((report.delivered, world.repeats()), (13, 0));
    engine.drain().await;
}
