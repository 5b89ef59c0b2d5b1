//! 500 events per second while somebody else's transaction stays open, as a dump's does: what ends meanwhile cannot be
//! cleaned up. One process accepts and another delivers, so that every delivery is taken from the table.
//!
//! The time of taking is that from the `202` to the receipt: it has the wake-up of the other process, the taking
//! statement and the request in it. Its p99 in the last 30 seconds of the transaction is held against that of the 30
//! seconds before it was opened.

use sqlx::{Connection as _, Executor as _, PgConnection};

use super::{Bar, Bench, Bound};
use crate::{
    figures::Figures,
    load::{generator::Pace, latency::Latency},
    site::{Shape, Site},
    stage::{Database, Role},
};

const PER_SECOND: u32 = 500;
/// A snapshot is taken by the first statement that reads, and held until the end.
const OPEN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM postrider.tenants";

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let (connections, seconds) = (bench.arguments.connections, bench.arguments.transaction_seconds);
    let window = PER_SECOND * bench.arguments.seconds.min(seconds);
    let events = PER_SECOND * seconds;
    let pace = Pace::Open { per_second: PER_SECOND };
    let shape = Shape {
        roles: &[Role::Api, Role::Worker],
        endpoints: 1,
        connections,
        events: window + events,
        ..Shape::default()
    };
    let mut site = Site::open(&mut bench.stage, shape).await?;
    let before = site.measure(&bench.stage, window, pace).await?.from_accepted;

    let mut reader = PgConnection::connect(&site.database().url).await?;
    reader.execute(OPEN).await?;
    let figures = site.measure(&bench.stage, events, pace).await?;
    let last = site.latest_latency(window)?;
    let queue = Database::queue_size(&mut reader).await?;
    reader.execute("ROLLBACK").await?;
    reader.close().await?;
    let database_ms = Some(site.close(&mut bench.stage, bench.arguments.statements).await?);
    let note = format!(
        "from 202 to receipt p50 / p99 {} ms before the transaction, {} ms in its last {} s of {seconds}; the queue's \
         table + indexes took {queue} KiB then",
        show(before),
        show(last),
        window / PER_SECOND,
    );
    let ratio = last.zip(before).map(|(last, before)| last.p99_ms / before.p99_ms);
    Ok(Figures { ratio, database_ms, notes: vec![note], ..figures })
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    vec![Bar { what: "p99 of taking / before", found: figures.ratio, bound: Bound::AtMost(3.0) }]
}

fn show(latency: Option<Latency>) -> String {
    latency.map_or_else(String::new, |latency| format!("{:.2} / {:.2}", latency.p50_ms, latency.p99_ms))
}
