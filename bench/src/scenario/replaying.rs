//! A healthy endpoint beside a replay of another tenant's: 100,000 deliveries that ten endpoints had refused for good, brought
//! back to receivers that take everything by now, as fast as the replay gives them out.

use anyhow::{Context as _, ensure};
use tokio::time::{sleep, timeout};

use super::{Bench, neighbour};
use crate::{
    figures::Figures,
    load::generator::Pace,
    site::{SETTLE_LIMIT, Shape, Site},
    stage::{EVERY_TYPE, Role},
};

const TENANT: &str = "globex";
/// Endpoints that get the same events.
const ENDPOINTS: u32 = 10;
const POLL: std::time::Duration = std::time::Duration::from_millis(50);

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let (connections, letters) = (bench.arguments.connections, bench.arguments.waiting);
    let events = neighbour::PER_SECOND * bench.arguments.seconds;
    let crowd_events = letters / ENDPOINTS;
    let shape = Shape {
        roles: &[Role::All],
        endpoints: 1,
        connections,
        events: 2 * events + crowd_events,
        ..Shape::default()
    };
    let pace = Pace::Open { per_second: neighbour::PER_SECOND };
    let mut site = Site::open(&mut bench.stage, shape).await?;
    let alone = site.measure(&bench.stage, events, pace).await?;

    let owner = site.tenant(TENANT).await?;
    let target = owner.application().await?;
    let names: Vec<String> = (0..ENDPOINTS).map(|place| format!("recovered-{place}")).collect();
    for name in &names {
        owner.endpoint(name, &site.sink_url("refuse"), EVERY_TYPE).await?;
    }
    site.publish_aside(vec![target], crowd_events, Pace::Closed).await?;
    let refused = async {
        while site.database().open_deliveries(TENANT).await? > 0 {
            sleep(POLL).await;
        }
        anyhow::Ok(())
    };
    timeout(SETTLE_LIMIT, refused).await.context("not everything was refused in time")??;
    for name in &names {
        owner.redirect(name, &site.sink_url("take")).await?;
    }
    bench.stage.checkpoint().await?;

    let before = site.ledger().unserved();
    let matches = owner.replay_all().await?;
    let expected = u64::from(crowd_events * ENDPOINTS);
    ensure!(matches == expected, "{expected} dead letters should be replayed, not {matches}");
    let beside = site.measure(&bench.stage, events, pace).await?;
    let replayed = site.ledger().unserved() - before;
    site.close(&mut bench.stage, bench.arguments.statements).await?;
    let crowd = format!("{replayed} of {matches} dead letters sent again meanwhile");
    Ok(neighbour::compare(&alone, beside, &crowd))
}
