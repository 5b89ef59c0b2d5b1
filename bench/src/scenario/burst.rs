//! As many events as connections can publish in a closed loop, to one endpoint, by one process of the role `all`.

use super::{Bar, Bench, Bound};
use crate::{ceiling::Ceilings, figures::Figures, load::generator::Pace, site::Shape, stage::Role};

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let (connections, events) = (bench.arguments.connections, bench.arguments.events);
    let shape = Shape { roles: &[Role::All], endpoints: 1, connections, events, ..Shape::default() };
    let figures = bench.measure(shape, Pace::Closed).await?;
    let ceiling = bench.ceilings.last().copied().map(Ceilings::combined_per_second);
    let ratio = figures.per_second.zip(ceiling).map(|(rate, ceiling)| rate / ceiling);
    Ok(Figures { ratio, ..figures })
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    vec![
        Bar { what: "rate / C", found: figures.ratio, bound: Bound::AtLeast(0.5) },
        Bar { what: "CPU, ms", found: figures.cpu_ms(), bound: Bound::AtMost(0.25) },
    ]
}
