//! A healthy endpoint beside 1,000 of another tenant that answer `500` at once. Ten each get the events of one type, 20
//! events per second in all, so that 200 first attempts per second fail, and the retries of the default policy (after 5
//! seconds, then twice as long each time) on top. This begins ten seconds before the second measurement, and after the
//! first; the endpoints exist before both.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::sleep;

use super::{Bench, neighbour};
use crate::{
    figures::Figures,
    load::{generator::Pace, message::Target},
    rate,
    site::{Shape, Site},
    stage::Role,
};

const TENANT: &str = "globex";
/// Endpoints that get the same events.
const GROUP: u16 = 10;
/// Events of the crowd.
const PER_SECOND: u32 = 20;
/// How much earlier than the measurement its events begin.
const LEAD: Duration = Duration::from_secs(10);

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let (connections, seconds) = (bench.arguments.connections, bench.arguments.seconds);
    let groups = bench.arguments.failing / GROUP;
    let events = neighbour::PER_SECOND * seconds;
    let crowd_events = PER_SECOND * (seconds + u32::try_from(LEAD.as_secs())?);
    let shape = Shape {
        roles: &[Role::All],
        endpoints: 1,
        connections,
        events: 2 * events + crowd_events,
        ..Shape::default()
    };
    let pace = Pace::Open { per_second: neighbour::PER_SECOND };
    let mut site = Site::open(&mut bench.stage, shape).await?;
    let targets = crowd(&site, groups).await?;
    bench.stage.checkpoint().await?;
    let alone = site.measure(&bench.stage, events, pace).await?;

    let publishing = site.publish_aside(targets, crowd_events, Pace::Open { per_second: PER_SECOND });
    let measuring = async {
        sleep(LEAD).await;
        let before = site.ledger().unserved();
        let beside = site.measure(&bench.stage, events, pace).await?;
        anyhow::Ok((beside, site.ledger().unserved() - before))
    };
    let (_, (beside, requests)) = futures::future::try_join(publishing, measuring).await?;
    let (open, expected) = (site.database().open_deliveries(TENANT).await?, crowd_events * u32::from(GROUP));
    ensure!(
        open == u64::from(expected),
        "{expected} deliveries should be open at failing endpoints, not {open}"
    );
    site.close(&mut bench.stage, bench.arguments.statements).await?;
    let crowd = format!(
        "{:.0} failing requests per second at {} endpoints",
        rate::real(requests) / f64::from(seconds),
        groups * GROUP
    );
    Ok(neighbour::compare(&alone, beside, &crowd))
}

/// Creates the endpoints that fail; returns where each group's events are published.
async fn crowd(site: &Site, groups: u16) -> anyhow::Result<Vec<Target>> {
    let owner = site.tenant(TENANT).await?;
    let target = owner.application().await?;
    let url = site.sink_url("fail");
    let mut targets = Vec::new();
    for group in 0..groups {
        let event_type = format!("order.group-{group}");
        for place in 0..GROUP {
            owner.endpoint(&format!("failing-{group}-{place}"), &url, &event_type).await?;
        }
        targets.push(target.for_event_type(&event_type));
    }
    Ok(targets)
}
