//! The burst with 5,000,000 finished deliveries in the tables: by turns with bursts on a new database, so that a machine
//! that slows down slows both. The ratio is that of the medians.
//!
//! The rows are those that ingest and settling leave, written by SQL in batches of events whose ids ascend with their
//! time, over the last 30 days: an event, its idempotency key, its delivery and its attempts each. Every second event is
//! the measured tenant's, the rest are those of 19 others; one in 50 was delivered at the second attempt, one in 1,000
//! is a dead letter. Then the tables are vacuumed and analyzed, as they would have been long ago.

mod past;

use super::{Bar, Bench, Bound};
use crate::{
    clock,
    figures::Figures,
    load::generator::Pace,
    rate,
    site::{Shape, Site, WARM_UP_EVENTS},
    stage::{EVERY_TYPE, Role},
};

/// Tenants besides the measured one.
const OTHERS: u16 = 19;

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Vec<Figures>> {
    let (runs, connections, events) =
        (bench.arguments.runs, bench.arguments.connections, bench.arguments.events);
    let empty = Shape { roles: &[Role::All], endpoints: 1, connections, events, ..Shape::default() };
    // Each burst has its own warm-up: the one on the other database has filled the caches.
    let mut site =
        Site::raise(&mut bench.stage, Shape { events: runs * (WARM_UP_EVENTS + events), ..empty }).await?;
    let loaded = load(bench, &mut site).await?;
    site.begin_after_history().await?;
    let (mut on_none, mut on_history) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        on_none.push(bench.measure(empty, Pace::Closed).await?);
        site.warm_up(&mut bench.stage).await?;
        on_history.push(site.measure(&bench.stage, events, Pace::Closed).await?);
    }
    site.close(&mut bench.stage, bench.arguments.statements).await?;
    let none = Figures::medians(&on_none);
    let ratio =
        Figures::medians(&on_history).per_second.zip(none.per_second).map(|(history, none)| history / none);
    for run in &mut on_history {
        run.ratio = ratio;
    }
    if let Some(run) = on_history.first_mut() {
        let rates = on_none.iter().filter_map(|run| run.per_second).map(|rate| format!("{rate:.0}"));
        run.notes.push(format!(
            "{loaded}; on new databases {}/s, at {:.3} ms of CPU per delivery",
            rates.collect::<Vec<_>>().join(", "),
            none.cpu_ms().unwrap_or_default(),
        ));
    }
    Ok(on_history)
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    vec![Bar { what: "rate / on none", found: figures.ratio, bound: Bound::AtLeast(0.9) }]
}

/// Writes the history; tells how large it is and how long that took.
async fn load(bench: &mut Bench, site: &mut Site) -> anyhow::Result<String> {
    for other in 0..OTHERS {
        let owner = site.tenant(&format!("tenant-{other}")).await?;
        owner.application().await?;
        owner.endpoint("endpoint", &site.sink_url("fail"), EVERY_TYPE).await?;
    }
    let deliveries = bench.arguments.history;
    let began_ns = clock::now_ns();
    past::write(&site.database().url, deliveries).await?;
    let written_ns = clock::now_ns();
    let bytes = past::clean(&site.database().url, deliveries).await?;
    bench.stage.checkpoint().await?;
    let seconds = |from, to| rate::real(to - from) / 1e9;
    let loaded = format!(
        "{deliveries} finished deliveries, written in {:.0} s, vacuumed and analyzed in {:.0} s, {:.1} GiB with indexes",
        seconds(began_ns, written_ns),
        seconds(written_ns, clock::now_ns()),
        rate::real(bytes) / f64::from(1 << 30),
    );
    eprintln!("  {loaded}");
    Ok(loaded)
}
