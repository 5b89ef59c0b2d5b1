//! S: the rows of one event's whole life, written by bare set-based statements: event, idempotency key and queue row,
//! then the queue row deleted, delivery and attempt inserted.
//!
//! Postrider's own schema with all its indexes, its durability, connections as the server's; no HTTP, no check, no
//! decision, no answer that anybody reads. The rows are prepared before the clock starts. Several batch sizes are tried,
//! on one connection that writes and settles by turns and on two that do both at once; the best of them is the ceiling.

use sqlx::{Connection as _, PgConnection, postgres::PgConnectOptions};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::{
    clock,
    load::message,
    rate,
    stage::{Database, Stage},
};

/// Batch sizes that are tried.
const SIZES: [u32; 5] = [64, 200, 500, 1_000, 3_000];
/// Events of each trial, and of a warm-up.
const TRIAL_EVENTS: u32 = 15_000;
const WARM_UP_EVENTS: u32 = 5_000;
/// Batches that may wait to be settled.
const MOST_WAITING: usize = 4;
/// Bits of an event's id that are kept free for its deliveries.
const DELIVERY_BITS: u32 = 16;

/// How the rows are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method {
    pub(crate) batch: u32,
    pub(crate) lanes: Lanes,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Lanes {
    /// One connection writes a batch, then settles it.
    ByTurns,
    /// One connection writes while another settles.
    AtOnce,
}

/// The columns of some events.
#[derive(Default)]
struct Batch {
    events: Vec<Uuid>,
    keys: Vec<String>,
    fingerprints: Vec<Vec<u8>>,
    bodies: Vec<Vec<u8>>,
    traces: Vec<Vec<u8>>,
    deliveries: Vec<Uuid>,
    tokens: Vec<Uuid>,
}

/// Tries every method and returns the fastest.
pub(crate) async fn best_method(stage: &mut Stage) -> anyhow::Result<Method> {
    let mut best: Option<(f64, Method)> = None;
    for lanes in [Lanes::ByTurns, Lanes::AtOnce] {
        for batch in SIZES {
            let method = Method { batch, lanes };
            let found = events_per_second(stage, method, TRIAL_EVENTS).await?;
            eprintln!("  bare SQL, {method}: {found:.0} events/s");
            if best.is_none_or(|(rate, _)| found > rate) {
                best = Some((found, method));
            }
        }
    }
    best.map(|(_, method)| method).ok_or_else(|| anyhow::anyhow!("no method was tried"))
}

/// S: events divided by the time from before the first statement to after the last, on a new database.
pub(crate) async fn events_per_second(stage: &mut Stage, method: Method, events: u32) -> anyhow::Result<f64> {
    let database = stage.database().await?;
    let scene = Scene::open(&database).await?;
    let (warm_up, measured) =
        (batches(0, WARM_UP_EVENTS, method.batch), batches(WARM_UP_EVENTS, events, method.batch));
    let scene = scene.write(warm_up, method.lanes).await?;
    stage.checkpoint().await?;
    let began_ns = clock::now_ns();
    let scene = scene.write(measured, method.lanes).await?;
    let ended_ns = clock::now_ns();
    scene.verify(WARM_UP_EVENTS + events).await?;
    stage.discard(database).await?;
    Ok(rate::per_second(events.into(), began_ns, ended_ns))
}

/// Two connections, and the ids that all rows share.
struct Scene {
    writing: PgConnection,
    settling: PgConnection,
    ids: [Uuid; 4],
}

impl Scene {
    async fn open(database: &Database) -> anyhow::Result<Self> {
        let options: PgConnectOptions = database.url.parse()?;
        // As the product's connections are: these statements are planned once, and every row is reached by its index.
        let pinned = [("plan_cache_mode", "force_generic_plan"), ("jit", "off")];
        let indexed = [("enable_seqscan", "off"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off")];
        let writing = PgConnection::connect_with(&options.clone().options(pinned)).await?;
        let settling = PgConnection::connect_with(&options.options(pinned).options(indexed)).await?;
        Ok(Self { writing, settling, ids: [1, 2, 3, 4].map(Uuid::from_u128) })
    }

    async fn write(self, batches: Vec<Batch>, lanes: Lanes) -> anyhow::Result<Self> {
        let Self { mut writing, mut settling, ids } = self;
        match lanes {
            Lanes::ByTurns => {
                for batch in &batches {
                    insert(&mut writing, ids, batch).await?;
                    settle(&mut settling, ids, batch).await?;
                }
            }
            Lanes::AtOnce => {
                let (written, mut waiting) = mpsc::channel(MOST_WAITING);
                let write = async {
                    for batch in &batches {
                        insert(&mut writing, ids, batch).await?;
                        written.send(batch).await.map_err(|_| anyhow::anyhow!("nobody settles"))?;
                    }
                    drop(written);
                    anyhow::Ok(())
                };
                let settle = async {
                    while let Some(batch) = waiting.recv().await {
                        settle(&mut settling, ids, batch).await?;
                    }
                    anyhow::Ok(())
                };
                futures::future::try_join(write, settle).await?;
            }
        }
        Ok(Self { writing, settling, ids })
    }

    /// Every row is where it belongs.
    async fn verify(mut self, events: u32) -> anyhow::Result<()> {
        let counts: (i64, i64, i64, i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM postrider.events), (SELECT count(*) FROM postrider.idempotency_keys),
                    (SELECT count(*) FROM postrider.deliveries), (SELECT count(*) FROM postrider.attempts),
                    (SELECT count(*) FROM postrider.delivery_queue)",
        )
        .fetch_one(&mut self.writing)
        .await?;
        let all = i64::from(events);
        anyhow::ensure!(
            counts == (all, all, all, all, 0),
            "bare SQL left {counts:?} rows of {events} events"
        );
        self.writing.close().await?;
        self.settling.close().await?;
        Ok(())
    }
}

async fn insert(connection: &mut PgConnection, ids: [Uuid; 4], batch: &Batch) -> anyhow::Result<()> {
    let query = ids.into_iter().fold(sqlx::query(include_str!("insert.sql")), sqlx::query::Query::bind);
    query
        .bind(&batch.events)
        .bind(&batch.keys)
        .bind(&batch.fingerprints)
        .bind(&batch.bodies)
        .bind(&batch.traces)
        .bind(&batch.deliveries)
        .bind(&batch.tokens)
        .execute(connection)
        .await?;
    Ok(())
}

async fn settle(connection: &mut PgConnection, ids: [Uuid; 4], batch: &Batch) -> anyhow::Result<()> {
    let query = sqlx::query(include_str!("settle.sql")).bind(ids[0]).bind(&batch.deliveries);
    query.execute(connection).await?;
    Ok(())
}

fn batches(first: u32, events: u32, size: u32) -> Vec<Batch> {
    let numbers: Vec<u32> = (first..first + events).collect();
    numbers.chunks(usize::try_from(size).unwrap_or(usize::MAX)).map(Batch::of).collect()
}

impl Batch {
    fn of(numbers: &[u32]) -> Self {
        let mut batch = Self::default();
        for number in numbers.iter().copied() {
            let key = message::key(number);
            let scattered = (u128::from(key) << 64) | u128::from(key);
            let event = event_id(number);
            batch.events.push(Uuid::from_u128(event));
            batch.keys.push(format!("{key:016x}"));
            batch.fingerprints.push(scattered.to_be_bytes().repeat(2));
            batch.bodies.push(message::body(number));
            batch.traces.push(scattered.to_be_bytes().to_vec());
            batch.deliveries.push(Uuid::from_u128(event + 1));
            batch.tokens.push(Uuid::from_u128(scattered));
        }
        batch
    }
}

/// Ascending, as those of UUID version 7 are, with zeros where the deliveries' numbers go.
fn event_id(number: u32) -> u128 {
    const VERSION: u128 = 7 << 76;
    const VARIANT: u128 = 2 << 62;
    (u128::from(number) << 80) | VERSION | VARIANT | (u128::from(message::key(number) >> 32) << DELIVERY_BITS)
}

impl std::fmt::Display for Method {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lanes = match self.lanes {
            Lanes::ByTurns => "written and settled by turns",
            Lanes::AtOnce => "written and settled at once",
        };
        write!(formatter, "batches of {}, {lanes}", self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_ascend_and_leave_room_for_deliveries() {
        let ids = [0, 1, 2, 1_000_000].map(event_id);
        assert!(ids.is_sorted());
        for id in ids {
            assert_eq!(id & 0xffff, 0);
            assert_eq!(Uuid::from_u128(id).get_version_num(), 7);
        }
    }

    #[test]
    fn batches_hold_every_event_once() {
        let sizes: Vec<usize> = batches(5, 25, 10).iter().map(|batch| batch.events.len()).collect();
        assert_eq!(sizes, [10, 10, 5]);
    }
}
