//! The burst with hand-off impossible: one process accepts, another takes from the queue and delivers.

use super::{Bar, Bench, Bound};
use crate::{figures::Figures, load::generator::Pace, site::Shape, stage::Role};

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let (connections, events) = (bench.arguments.connections, bench.arguments.events);
    let shape =
        Shape { roles: &[Role::Api, Role::Worker], endpoints: 1, connections, events, ..Shape::default() };
    let figures = bench.measure(shape, Pace::Closed).await?;
    let ratio = figures.per_second.zip(bench.newest_burst_per_second()).map(|(rate, burst)| rate / burst);
    Ok(Figures { ratio, ..figures })
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    vec![Bar { what: "rate / burst", found: figures.ratio, bound: Bound::AtLeast(0.7) }]
}
