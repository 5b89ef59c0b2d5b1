//! The outbox: messages to a broker, written in the transaction that makes their deliveries ready.
//!
//! Invariant: a message leaves only when the broker has confirmed it. Whoever publishes holds it for a bounded time;
//! one that ends meanwhile is published again by another, and those who receive it twice find its rows claimed.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    queue::{self, Bucket, Pointer, Queue, Route},
    retry::DeadReason,
};
use sqlx::PgConnection;

use crate::error::Error;

/// A message on its way into the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub route: Route,
    pub payload: Vec<u8>,
    pub deliveries: i32,
    pub reason: Option<String>,
}

/// The messages that name these deliveries.
pub fn messages(route: Route, pointers: &[Pointer], reason: Option<&str>) -> impl Iterator<Item = Message> {
    let chunks = pointers.chunks(queue::MOST_POINTERS);
    queue::write(pointers).zip(chunks).map(move |(payload, pointers)| Message {
        route,
        payload,
        deliveries: i32::try_from(pointers.len()).unwrap_or(i32::MAX),
        reason: reason.map(ToOwned::to_owned),
    })
}

/// The messages that name deliveries which come back after a wait: those of one wait together.
pub fn waiting(pointers: &[(Bucket, Pointer)]) -> impl Iterator<Item = Message> {
    Bucket::ALL.into_iter().flat_map(|bucket| {
        let same: Vec<Pointer> =
            pointers.iter().filter(|(of, _)| *of == bucket).map(|(_, pointer)| *pointer).collect();
        messages(Route::Retry(bucket), &same, None).collect::<Vec<_>>()
    })
}

/// Who is told what becomes of deliveries, in the transaction in which it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Workers hear through it what is ready, and people see at it what ended without success.
    Broker,
    /// Whoever looks into the tables sees it there.
    Nobody,
}

impl Audience {
    /// Where a broker is used it is told, also while it is away.
    pub fn of(queue: Option<&Arc<dyn Queue>>) -> Self {
        if queue.is_some() { Self::Broker } else { Self::Nobody }
    }
}

/// Names deliveries that have become ready, in the caller's transaction.
pub(crate) async fn announce(
    connection: &mut PgConnection,
    audience: Audience,
    ready: &[Pointer],
) -> Result<(), sqlx::Error> {
    match audience {
        Audience::Nobody => Ok(()),
        Audience::Broker => {
            let messages: Vec<Message> = messages(Route::Ready, ready, None).collect();
            insert(connection, &messages).await
        }
    }
}

/// One message for each delivery that became a dead letter: whoever handles one is done with it.
pub fn dead(pointer: Pointer, reason: DeadReason) -> impl Iterator<Item = Message> {
    messages(Route::Dead, &[pointer], Some(reason.as_str())).collect::<Vec<_>>().into_iter()
}

/// Shows dead letters to people, in the caller's transaction.
pub(crate) async fn mirror(
    connection: &mut PgConnection,
    audience: Audience,
    ended: impl Iterator<Item = (Pointer, DeadReason)>,
) -> Result<(), Error> {
    match audience {
        Audience::Nobody => Ok(()),
        Audience::Broker => {
            let messages: Vec<Message> = ended.flat_map(|(pointer, reason)| dead(pointer, reason)).collect();
            add(connection, &messages).await
        }
    }
}

/// Writes messages, in the caller's transaction. Often there are none.
pub async fn add(connection: &mut PgConnection, messages: &[Message]) -> Result<(), Error> {
    Ok(insert(connection, messages).await?)
}

async fn insert(connection: &mut PgConnection, messages: &[Message]) -> Result<(), sqlx::Error> {
    if messages.is_empty() {
        return Ok(());
    }
    let routes: Vec<&str> = messages.iter().map(|message| message.route.as_str()).collect();
    let payloads: Vec<&[u8]> = messages.iter().map(|message| message.payload.as_slice()).collect();
    let deliveries: Vec<i32> = messages.iter().map(|message| message.deliveries).collect();
    let reasons: Vec<Option<&str>> = messages.iter().map(|message| message.reason.as_deref()).collect();
    sqlx::query!(
        "INSERT INTO postrider.outbox (route, payload, deliveries, reason)
         SELECT * FROM unnest($1::text[], $2::bytea[], $3::int[], $4::text[])",
        &routes as _,
        &payloads as _,
        &deliveries,
        &reasons as _,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// A message that a publisher holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub outbox_id: i64,
    /// The broker's queue; of a newer program it may be one that this one does not know.
    pub route: String,
    pub payload: Vec<u8>,
    pub reason: Option<String>,
}

/// Which messages a publisher wants.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// Where to look from: lets the scan start behind what is published and not yet cleaned up.
    pub from: i64,
    pub limit: u16,
    /// How long they are the publisher's.
    pub hold: Duration,
}

/// Removes what was published, and hands out the oldest messages that nobody holds, in one round trip.
pub async fn advance(
    connection: &mut PgConnection,
    published: &[i64],
    claim: Claim,
) -> Result<Vec<Held>, Error> {
    let mut held = sqlx::query_as!(
        Held,
        r#"
        WITH published AS (
            DELETE FROM postrider.outbox WHERE outbox_id = ANY($1)
        ), free AS MATERIALIZED (
            SELECT ctid AS location FROM postrider.outbox
             WHERE outbox_id >= $2 AND (claimed_until IS NULL OR claimed_until < now())
               AND outbox_id <> ALL($1)
             ORDER BY outbox_id
             LIMIT $3
               FOR UPDATE SKIP LOCKED
        )
        UPDATE postrider.outbox o SET claimed_until = now() + make_interval(secs => $4)
          FROM free WHERE o.ctid = free.location
        RETURNING o.outbox_id, o.route, o.payload, o.reason
        "#,
        published,
        claim.from,
        i64::from(claim.limit),
        claim.hold.as_secs_f64(),
    )
    .fetch_all(connection)
    .await?;
    held.sort_unstable_by_key(|held| held.outbox_id);
    Ok(held)
}

/// How long messages may wait while the broker is away.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For those to workers, whose deliveries are found in the table.
    pub for_workers: Duration,
    /// For those that people read.
    pub for_people: Duration,
}

/// Gives up at most `limit` messages that have waited for too long; the answer counts them.
pub async fn forget(connection: &mut PgConnection, patience: Patience, limit: u16) -> Result<u64, Error> {
    let done = sqlx::query!(
        "WITH old AS MATERIALIZED (
             SELECT ctid AS location FROM postrider.outbox
              WHERE created_at < now() - make_interval(secs => CASE route WHEN $2 THEN $3::float8 ELSE $1::float8 END)
              ORDER BY outbox_id LIMIT $4 FOR UPDATE SKIP LOCKED)
         DELETE FROM postrider.outbox o USING old WHERE o.ctid = old.location",
        patience.for_workers.as_secs_f64(),
        Route::Dead.as_str(),
        patience.for_people.as_secs_f64(),
        i64::from(limit),
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

/// Removes what was published, and gives back what could not be, so that another need not wait for the end of the hold.
pub async fn give_back(connection: &mut PgConnection, published: &[i64], left: &[i64]) -> Result<(), Error> {
    sqlx::query!(
        "WITH published AS (DELETE FROM postrider.outbox WHERE outbox_id = ANY($1))
         UPDATE postrider.outbox SET claimed_until = NULL WHERE outbox_id = ANY($2)",
        published,
        left,
    )
    .execute(connection)
    .await?;
    Ok(())
}
