//! The burst with deliveries announced through RabbitMQ: each goes through outbox and broker, and none is handed over.

use super::{Bar, Bench, Bound};
use crate::{figures::Figures, load::generator::Pace, site::Shape, stage::Role};

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let (connections, events) = (bench.arguments.connections, bench.arguments.events);
    let roles = &[Role::All];
    let shape = Shape { roles, endpoints: 1, connections, events, with_broker: true, ..Shape::default() };
    let figures = bench.measure(shape, Pace::Closed).await?;
    let ratio = figures.per_second.zip(bench.newest_burst_per_second()).map(|(rate, burst)| rate / burst);
    Ok(Figures { ratio, ..figures })
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    vec![Bar { what: "rate / burst", found: figures.ratio, bound: Bound::AtLeast(0.6) }]
}
