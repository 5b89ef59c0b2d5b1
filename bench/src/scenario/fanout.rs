//! The burst with five endpoints, each of which gets every event: the rate counts deliveries. There are a fifth as many
//! events, so that as many deliveries are made.

use super::{Bar, Bench, Bound};
use crate::{figures::Figures, load::generator::Pace, site::Shape, stage::Role};

const ENDPOINTS: u16 = 5;

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let (connections, events) = (bench.arguments.connections, bench.arguments.events / u32::from(ENDPOINTS));
    let shape = Shape { roles: &[Role::All], endpoints: ENDPOINTS, connections, events, ..Shape::default() };
    let figures = bench.measure(shape, Pace::Closed).await?;
    let ratio = figures.per_second.zip(bench.newest_burst_per_second()).map(|(rate, burst)| rate / burst);
    Ok(Figures { ratio, ..figures })
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    vec![Bar { what: "rate / burst", found: figures.ratio, bound: Bound::AtLeast(1.6) }]
}
