//! H: the generator's very requests, over as many connections, straight to the sink.

use std::sync::Arc;

use anyhow::ensure;

use crate::{
    load::{
        generator::{Load, Pace},
        ledger::Ledger,
        message::Target,
        sink::Sink,
    },
    rate,
};

const WARM_UP: u32 = 10_000;
const REQUESTS: u32 = 150_000;

/// H: requests divided by the time from before the first one to after the last answer.
pub(crate) async fn requests_per_second(connections: u16) -> anyhow::Result<f64> {
    let ledger = Arc::new(Ledger::new(WARM_UP + REQUESTS, 1));
    let sink = Sink::start(Arc::clone(&ledger))?;
    // As long as a publish token and the path of a publish request, so that heads weigh the same.
    let target = Target { address: sink.address, path: "/ok/0".to_owned(), token: "x".repeat(90) };
    let load = |first, events| Load {
        targets: vec![target.clone()],
        connections,
        first,
        events,
        pace: Pace::Closed,
    };
    load(0, WARM_UP).run(Arc::clone(&ledger)).await?;
    let sent = load(WARM_UP, REQUESTS).run(Arc::clone(&ledger)).await?;
    let (received, expected) = (ledger.received(), u64::from(WARM_UP + REQUESTS));
    ensure!(received == expected, "{expected} requests went to the sink, {received} were received");
    Ok(rate::per_second(REQUESTS.into(), sent.began_ns, sent.ended_ns))
}
