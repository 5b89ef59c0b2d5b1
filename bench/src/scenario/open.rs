//! Events by a timetable, at a share of the burst's rate: what a publisher waits, and how soon a receiver knows.

use super::{Bar, Bench, Bound};
use crate::{figures::Figures, load::generator::Pace, site::Shape, stage::Role};

/// Of the median burst, in per cent.
const PERCENT: f64 = 40.0;

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let wanted = bench.median_burst_per_second().map_or(1_000.0, |burst| burst * PERCENT / 100.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate is positive and small"
    )]
    let per_second = bench.arguments.rate.unwrap_or(wanted as u32);
    let connections = bench.arguments.connections;
    let events = per_second * bench.arguments.seconds;
    let shape = Shape { roles: &[Role::All], endpoints: 1, connections, events, ..Shape::default() };
    let figures = bench.measure(shape, Pace::Open { per_second }).await?;
    let ratio = figures.per_second.zip(bench.median_burst_per_second()).map(|(rate, burst)| rate / burst);
    Ok(Figures { ratio, ..figures })
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    let from_due = figures.from_due;
    vec![
        Bar { what: "p50, ms", found: from_due.map(|latency| latency.p50_ms), bound: Bound::AtMost(5.0) },
        Bar { what: "p99, ms", found: from_due.map(|latency| latency.p99_ms), bound: Bound::AtMost(25.0) },
    ]
}
