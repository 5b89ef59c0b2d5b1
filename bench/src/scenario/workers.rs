//! What a second worker brings where the receivers are the limit: each worker may have few requests in flight, and each
//! request takes its time.

use super::{Bar, Bench, Bound};
use crate::{figures::Figures, load::generator::Pace, site::Shape, stage::Role};

/// Several, so that none of them is the limit by itself.
const ENDPOINTS: u16 = 2;
const CONCURRENCY: u16 = 32;
/// About eight seconds for one worker.
const EVENTS: u32 = 2_500;

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Vec<Figures>> {
    let mut found = Vec::new();
    for _ in 0..bench.arguments.runs {
        let one = measure(bench, &[Role::Api, Role::Worker]).await?;
        let two = measure(bench, &[Role::Api, Role::Worker, Role::Worker]).await?;
        let ratio = two.per_second.zip(one.per_second).map(|(two, one)| two / one);
        let mut notes = two.notes.clone();
        notes.extend(one.per_second.map(|rate| format!("one worker made {rate:.0} deliveries/s")));
        found.push(Figures { ratio, notes, ..two });
    }
    Ok(found)
}

async fn measure(bench: &mut Bench, roles: &'static [Role]) -> anyhow::Result<Figures> {
    let shape = Shape {
        roles,
        endpoints: ENDPOINTS,
        connections: bench.arguments.connections,
        events: EVENTS,
        with_broker: true,
        path: "late",
        concurrency: Some(CONCURRENCY),
    };
    bench.measure(shape, Pace::Closed).await
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    vec![Bar { what: "two / one", found: figures.ratio, bound: Bound::AtLeast(1.8) }]
}
