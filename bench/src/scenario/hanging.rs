//! A healthy endpoint beside one of another tenant that keeps every request for 30 seconds, and for which 100,000
//! deliveries wait. These are published through the API, as fast as they are taken, between the two measurements; what
//! that left to be written out is written before the second. The server gives each request up after the 15 seconds of
//! its default, so none of them ends well.

use anyhow::ensure;

use super::{Bench, neighbour};
use crate::{
    figures::Figures,
    load::generator::Pace,
    site::{Shape, Site},
    stage::{EVERY_TYPE, Role},
};

const TENANT: &str = "globex";

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let (connections, waiting) = (bench.arguments.connections, bench.arguments.waiting);
    let events = neighbour::PER_SECOND * bench.arguments.seconds;
    let shape = Shape {
        roles: &[Role::All],
        endpoints: 1,
        connections,
        events: 2 * events + waiting,
        ..Shape::default()
    };
    let pace = Pace::Open { per_second: neighbour::PER_SECOND };
    let mut site = Site::open(&mut bench.stage, shape).await?;
    let alone = site.measure(&bench.stage, events, pace).await?;

    let owner = site.tenant(TENANT).await?;
    let target = owner.application().await?;
    owner.endpoint("hanging", &site.sink_url("hang"), EVERY_TYPE).await?;
    site.publish_aside(vec![target], waiting, Pace::Closed).await?;
    bench.stage.checkpoint().await?;

    let beside = site.measure(&bench.stage, events, pace).await?;
    let requests = site.ledger().unserved();
    let open = site.database().open_deliveries(TENANT).await?;
    ensure!(
        open == u64::from(waiting),
        "{waiting} deliveries should wait for the hanging endpoint, not {open}"
    );
    site.close(&mut bench.stage, bench.arguments.statements).await?;
    let crowd = format!("{waiting} that wait and {requests} requests that were kept");
    Ok(neighbour::compare(&alone, beside, &crowd))
}
