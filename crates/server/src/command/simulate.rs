//! `postrider simulate`: runs the scripted receivers alone.

use std::{fs, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::Args;
use postrider_engine::{
    clock::{Clock, SystemClock},
    supervisor::Shutdown,
};
use postrider_simulator::{Settings, Simulator, script::SCRIPTS};

use crate::{
    environment::Environment,
    signals::Signals,
    telemetry::{self, LogFormat, Logs, Output},
};

const EXAMPLES: &str = "\
Examples:
  postrider simulate
  postrider simulate --listen 127.0.0.1:9000 --secret-file warehouse.secret
  curl http://127.0.0.1:8788/_/requests?limit=1      what arrived last, and whether the signature held";

/// Run scripted receivers: endpoints that answer as their path says, and show what they got.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8788")]
    listen: SocketAddr,
    /// File with a signing secret (whsec_…) to check signatures under; may be given again
    #[arg(long)]
    secret_file: Vec<PathBuf>,
}

pub(crate) async fn run(arguments: &Arguments, environment: &Environment) -> anyhow::Result<()> {
    let logs = Logs { format: LogFormat::Text, default_filter: "info", to: Output::Stderr };
    telemetry::start_logs(logs, environment)?;
    let signals = Signals::register().context("signals cannot be watched")?;
    let clock = SystemClock::new();
    let settings = Settings { listen: arguments.listen, now: Arc::new(move || clock.now()) };
    let simulator = Simulator::start(settings).await?;
    for path in &arguments.secret_file {
        let secret =
            fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        simulator.trust(&secret).with_context(|| format!("in {}", path.display()))?;
    }
    println!("The simulator listens on {}\n\n{SCRIPTS}", simulator.url("/"));
    let shutdown = Shutdown::default();
    tokio::select! {
        () = shutdown.draining() => {}
        never = signals.watch(&shutdown) => match never {},
    }
    simulator.stop().await;
    Ok(())
}
