//! The consumer: hands arriving messages to the engine, and acknowledges each when its last delivery has a durable result.
//!
//! Invariant: no message is acknowledged before that, save one that nobody can read, which is first set aside for people. At
//! the drain those that nobody has looked at yet go back to the queue.

use futures::StreamExt as _;
use lapin::{
    Channel, Connection, Consumer,
    message::Delivery,
    options::{BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions},
    types::{AMQPValue, FieldTable},
};
use postrider_core::queue::{self, Arrival, Receipt, Route};
use postrider_store::{
    lanes::{self, Lane, Line},
    outbox::{self, Message},
};
use tokio::sync::mpsc;

use super::{Error, RabbitMq, Tries, bounded, watch};

/// A message that was brought so often and never acknowledged ends its workers before they come to its rows. Nothing is
/// lost with it: they are found in the table.
const MOST_REDELIVERIES: i64 = 50;
/// A message that nobody can read is kept for people up to this size.
const LARGEST_UNREADABLE: usize = 64 * 1024;
const SPARE_MESSAGES: u16 = 64;
const MOST_MESSAGES: u16 = 4_096;
const TAG: &str = "postrider";

/// Owed for a message: tells its delivery tag when it is dropped.
struct Owed {
    tag: u64,
    settled: mpsc::UnboundedSender<u64>,
}

impl Drop for Owed {
    fn drop(&mut self) {
        // Of a connection that has ended: the broker brings the message to somebody else.
        let _ = self.settled.send(self.tag);
    }
}

/// Runs until the drain, and then until everything in hand is acknowledged.
pub(super) async fn run(rabbit: &RabbitMq) {
    let mut line = Line::new(rabbit.settings.options.clone(), Lane::Background);
    let mut tries = Tries::of("consumer");
    while !rabbit.is_draining() {
        let ended = connected(rabbit, &mut line, &mut tries).await;
        rabbit.set_consuming(false);
        rabbit.drop_unseen();
        if let Err(error) = ended {
            tries.failed(rabbit, &error).await;
        }
    }
}

/// Consumes over one connection, until it breaks or everything is done.
async fn connected(rabbit: &RabbitMq, line: &mut Line, tries: &mut Tries) -> Result<(), Error> {
    let connection = tokio::select! {
        connection = rabbit.connect(tries.what) => connection?,
        () = rabbit.settings.draining.cancelled() => return Ok(()),
    };
    let (channel, consumer) = open(rabbit, &connection).await?;
    tries.succeeded();
    rabbit.set_consuming(true);
    let (settled, tags) = mpsc::unbounded_channel();
    let mut consuming = Consuming { rabbit, line, channel, settled, tags, in_hand: 0 };
    tokio::select! {
        error = watch(&connection, |_| {}) => return Err(error),
        ended = consuming.run(consumer) => ended?,
    }
    // Only a tidy end: what is not acknowledged goes back to the queue either way.
    let _ = bounded(connection.close(200, "drained".into())).await;
    Ok(())
}

async fn open(rabbit: &RabbitMq, connection: &Connection) -> Result<(Channel, Consumer), Error> {
    let channel = bounded(connection.create_channel()).await?;
    bounded(
        channel.basic_qos(prefetch(rabbit.settings.sends_at_once.unwrap_or(1)), BasicQosOptions::default()),
    )
    .await?;
    let (queue, options) = (Route::Ready.as_str().into(), BasicConsumeOptions::default());
    let consumer = bounded(channel.basic_consume(queue, TAG.into(), options, FieldTable::default())).await?;
    Ok((channel, consumer))
}

struct Consuming<'a> {
    rabbit: &'a RabbitMq,
    line: &'a mut Line,
    channel: Channel,
    settled: mpsc::UnboundedSender<u64>,
    tags: mpsc::UnboundedReceiver<u64>,
    /// Messages that are with the engine.
    in_hand: usize,
}

impl Consuming<'_> {
    async fn run(&mut self, mut consumer: Consumer) -> Result<(), Error> {
        loop {
            tokio::select! {
                Some(tag) = self.tags.recv() => {
                    self.in_hand -= 1;
                    self.acknowledge(tag).await?;
                }
                delivery = consumer.next() => match delivery {
                    Some(delivery) => self.receive(delivery?).await?,
                    None => return Err(Error::Cancelled),
                },
                () = self.rabbit.settings.draining.cancelled() => return self.drain().await,
            }
        }
    }

    async fn receive(&mut self, delivery: Delivery) -> Result<(), Error> {
        let unreadable = if redeliveries(&delivery) > MOST_REDELIVERIES {
            format!("brought {MOST_REDELIVERIES} times and never acknowledged")
        } else {
            match queue::read(&delivery.data) {
                Ok(pointers) => {
                    let owed = Owed { tag: delivery.delivery_tag, settled: self.settled.clone() };
                    self.in_hand += 1;
                    // The other end is held by this process as long as it runs.
                    let _ = self.rabbit.arrived.send(Arrival { pointers, receipt: Receipt::new(owed) });
                    return Ok(());
                }
                Err(error) => error.to_string(),
            }
        };
        tracing::warn!(reason = unreadable, "a message is set aside for people");
        self.set_aside(delivery.data, unreadable).await?;
        metrics::counter!("postrider_unreadable_messages_total").increment(1);
        self.acknowledge(delivery.delivery_tag).await
    }

    async fn set_aside(&mut self, mut payload: Vec<u8>, reason: String) -> Result<(), Error> {
        payload.truncate(LARGEST_UNREADABLE);
        let message = Message { route: Route::Dead, payload, deliveries: 0, reason: Some(reason) };
        let added = lanes::bounded(outbox::add(self.line.connection().await?, &[message])).await;
        Ok(self.line.checked(added)?)
    }

    async fn acknowledge(&self, tag: u64) -> Result<(), Error> {
        bounded(self.channel.basic_ack(tag, BasicAckOptions::default())).await
    }

    /// Takes no more, puts back what nobody has looked at, and waits for the rest.
    async fn drain(&mut self) -> Result<(), Error> {
        bounded(self.channel.basic_cancel(TAG.into(), BasicCancelOptions::default())).await?;
        // Kept until the connection ends: dropped before, they would be acknowledged.
        let mut unseen = Vec::new();
        let mut arrivals = self.rabbit.arrivals.lock().await;
        while let Ok(arrival) = arrivals.try_recv() {
            unseen.push(arrival);
        }
        drop(arrivals);
        while self.in_hand > unseen.len() {
            let Some(tag) = self.tags.recv().await else { break };
            self.in_hand -= 1;
            self.acknowledge(tag).await?;
        }
        bounded(self.channel.close(200, "drained".into())).await?;
        drop(unseen);
        Ok(())
    }
}

/// Messages that may be in hand: more than the engine may have requests in flight at slow endpoints (four times as many as at
/// quick ones), each of which may keep a message of its own, so that quick ones always come through.
const fn prefetch(sends_at_once: u16) -> u16 {
    let messages = sends_at_once.saturating_mul(4).saturating_add(SPARE_MESSAGES);
    if messages > MOST_MESSAGES { MOST_MESSAGES } else { messages }
}

/// How often the broker has brought the message before, as a quorum queue counts.
fn redeliveries(delivery: &Delivery) -> i64 {
    let headers = delivery.properties.headers().as_ref();
    match headers.and_then(|headers| headers.inner().get("x-delivery-count")) {
        Some(AMQPValue::LongLongInt(count)) => *count,
        Some(AMQPValue::LongInt(count)) => (*count).into(),
        Some(AMQPValue::ShortInt(count)) => (*count).into(),
        Some(AMQPValue::ShortShortInt(count)) => (*count).into(),
        _ => 0,
    }
}
