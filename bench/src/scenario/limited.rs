//! The burst of a tenant that has a rate and every quota, all beyond its reach: what it costs to hold somebody to limits.

use serde_json::json;

use super::{Bar, Bench, Bound};
use crate::{
    figures::Figures,
    load::generator::Pace,
    site::{Shape, Site},
    stage::Role,
};

/// More than is published here in an hour.
const OUT_OF_REACH: u64 = 1_000_000_000;

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let (connections, events) = (bench.arguments.connections, bench.arguments.events);
    let shape = Shape { roles: &[Role::All], endpoints: 1, connections, events, ..Shape::default() };
    let mut site = Site::raise(&mut bench.stage, shape).await?;
    let quotas = json!({
        "hourlyEvents": OUT_OF_REACH, "hourlyBytes": 1_000 * OUT_OF_REACH, "openDeliveries": OUT_OF_REACH,
    });
    site.limit(&json!({ "rate": 1_000_000, "burst": 1_000_000, "quotas": quotas })).await?;
    site.warm_up(&mut bench.stage).await?;
    let mut figures = site.measure(&bench.stage, events, Pace::Closed).await?;
    figures.database_ms = Some(site.close(&mut bench.stage, bench.arguments.statements).await?);
    let ratio = figures.per_second.zip(bench.newest_burst_per_second()).map(|(rate, burst)| rate / burst);
    Ok(Figures { ratio, ..figures })
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    vec![Bar { what: "rate / burst", found: figures.ratio, bound: Bound::AtLeast(0.85) }]
}
