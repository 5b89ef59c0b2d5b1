//! A process of the role `all` that was started, has delivered the events of the warm-up, and has nothing more to do.

use std::time::Duration;

use super::{Bar, Bench, Bound};
use crate::{
    figures::Figures,
    site::{Shape, Site},
    stage::Role,
};

/// After the warm-up, so that its last vacuum does not count.
const SETTLING: Duration = Duration::from_secs(5);

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let connections = bench.arguments.connections;
    let shape = Shape { roles: &[Role::All], connections, ..Shape::default() };
    let site = Site::open(&mut bench.stage, shape).await?;
    tokio::time::sleep(SETTLING).await;
    let before = site.used(&bench.stage)?;
    tokio::time::sleep(Duration::from_secs(bench.arguments.seconds.into())).await;
    let after = site.used(&bench.stage)?;
    let memory = site.memory()?;
    let (server, postgres) = after.percent_since(before);
    site.close(&mut bench.stage, bench.arguments.statements).await?;
    Ok(Figures {
        peak_mib: Some(memory.peak_mib),
        resident_mib: Some(memory.resident_mib),
        idle_server_percent: Some(server),
        idle_postgres_percent: Some(postgres),
        ..Figures::default()
    })
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    vec![
        Bar { what: "resident, MiB", found: figures.resident_mib, bound: Bound::AtMost(60.0) },
        Bar { what: "CPU, % of a core", found: figures.idle_server_percent, bound: Bound::AtMost(1.0) },
    ]
}
