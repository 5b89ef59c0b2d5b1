//! The queues at the broker, declared whenever it is reached, and the mark by which it is known again.
//!
//! Invariant: a broker that has lost its queues is noticed before anything is published to it. Then a new epoch begins.

use lapin::{
    Channel, Connection, ErrorKind,
    options::{QueueDeclareOptions, QueueDeleteOptions},
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
};
use postrider_core::queue::Route;
use postrider_store::{
    broker_epoch,
    lanes::{self, Line},
};
use uuid::Uuid;

use super::{Error, bounded};

/// Deliveries of one message without an acknowledgement: never, to all intents. From version 4 on a broker drops it after 20
/// by itself, which is sooner than a worker sets it aside, and than people are done with looking at dead letters.
const MOST_DELIVERIES: i32 = 1_000_000;
/// Messages for people are kept up to this number; then the oldest go.
const MOST_DEAD: i32 = 100_000;

/// Declares everything, and begins a new epoch where the broker is not the one that the database knows.
pub(super) async fn prepare(connection: &Connection, line: &mut Line) -> Result<(), Error> {
    let known = lanes::bounded(broker_epoch::current(line.connection().await?)).await;
    let known = line.checked(known)?;
    let is_known = match known {
        Some(epoch) => {
            exists(connection, Route::Ready.as_str()).await? && exists(connection, &mark(epoch)).await?
        }
        None => false,
    };
    let channel = bounded(connection.create_channel()).await?;
    for route in Route::all() {
        declare(&channel, route.as_str(), arguments(route)).await?;
    }
    if !is_known {
        begin_epoch(&channel, line, known).await?;
    }
    // Only a tidy end: the connection goes on without this channel.
    let _ = bounded(channel.close(200, "declared".into())).await;
    Ok(())
}

async fn begin_epoch(channel: &Channel, line: &mut Line, known: Option<Uuid>) -> Result<(), Error> {
    let begun = lanes::bounded(broker_epoch::begin(line.connection().await?, known, Uuid::now_v7())).await;
    let epoch = line.checked(begun)?;
    // Later than the row: if this process ends in between, the next one finds no mark and begins once more.
    declare(channel, &mark(epoch), quorum()).await?;
    if let Some(known) = known.filter(|known| *known != epoch) {
        tracing::warn!("the broker has lost its queues; open deliveries are announced anew");
        metrics::counter!("postrider_broker_epochs_total").increment(1);
        delete(channel, &mark(known)).await?;
    }
    // Whoever did not find our mark yet has begun another epoch, and had none to delete.
    let newest = lanes::bounded(broker_epoch::current(line.connection().await?)).await;
    if line.checked(newest)? != Some(epoch) {
        delete(channel, &mark(epoch)).await?;
    }
    Ok(())
}

fn mark(epoch: Uuid) -> String {
    format!("postrider.epoch.{}", epoch.simple())
}

/// A channel of its own: the broker closes the one that asks for what is not there.
async fn exists(connection: &Connection, queue: &str) -> Result<bool, Error> {
    let channel = bounded(connection.create_channel()).await?;
    let options = QueueDeclareOptions { passive: true, durable: true, ..QueueDeclareOptions::default() };
    match bounded(channel.queue_declare(queue.into(), options, FieldTable::default())).await {
        Ok(_) => {
            let _ = bounded(channel.close(200, "looked".into())).await;
            Ok(true)
        }
        Err(Error::Broker(error)) if is(&error, &AMQPSoftError::NOTFOUND) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn declare(channel: &Channel, queue: &str, arguments: FieldTable) -> Result<(), Error> {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    match bounded(channel.queue_declare(queue.into(), options, arguments)).await {
        Ok(_) => Ok(()),
        Err(Error::Broker(error)) if is(&error, &AMQPSoftError::PRECONDITIONFAILED) => {
            Err(Error::Unlike { queue: queue.to_owned(), reason: error.to_string() })
        }
        Err(error) => Err(error),
    }
}

async fn delete(channel: &Channel, queue: &str) -> Result<(), Error> {
    bounded(channel.queue_delete(queue.into(), QueueDeleteOptions::default())).await.map(|_| ())
}

fn is(error: &lapin::Error, expected: &AMQPSoftError) -> bool {
    match error.kind() {
        ErrorKind::ProtocolError(error) => {
            matches!(error.kind(), AMQPErrorKind::Soft(kind) if kind == expected)
        }
        _ => false,
    }
}

fn quorum() -> FieldTable {
    table([("x-queue-type", text("quorum"))])
}

fn arguments(route: Route) -> FieldTable {
    match route {
        Route::Ready => table([("x-queue-type", text("quorum")), unlimited()]),
        Route::Retry(bucket) => table([
            ("x-queue-type", text("quorum")),
            (
                "x-message-ttl",
                AMQPValue::LongLongInt(i64::try_from(bucket.wait().as_millis()).unwrap_or(i64::MAX)),
            ),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(Route::Ready.as_str())),
            // A message leaves only when the queue of those that are ready has it; this asks for the next line as well.
            ("x-dead-letter-strategy", text("at-least-once")),
            ("x-overflow", text("reject-publish")),
        ]),
        Route::Dead => table([
            ("x-queue-type", text("quorum")),
            unlimited(),
            ("x-max-length", AMQPValue::LongInt(MOST_DEAD)),
            ("x-overflow", text("drop-head")),
        ]),
    }
}

fn unlimited() -> (&'static str, AMQPValue) {
    ("x-delivery-limit", AMQPValue::LongInt(MOST_DELIVERIES))
}

fn table<const N: usize>(arguments: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert(ShortString::from(name), value);
    }
    table
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}
