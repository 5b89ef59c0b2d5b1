//! `postrider serve`: accepts, delivers, or both, until told to stop.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use clap::Args;
use postrider_engine::{
    clock::{Clock, SystemClock},
    supervisor::Shutdown,
};
use tokio::net::TcpListener;

use crate::{
    configuration::{self, Configuration, setting},
    environment::Environment,
    process::{Parts, Process, Role},
    signals::Signals,
    telemetry::{self, LogFormat, Logs, Output},
};

const EXAMPLES: &str = "\
Examples:
  postrider serve                                      accept and deliver
  postrider serve --role api                           accept only; workers deliver
  postrider serve --role worker --listen 127.0.0.1:9001
  postrider serve --config /etc/postrider.toml --drain-seconds 60

Needed: DATABASE_URL, POSTRIDER_ENCRYPTION_KEY, POSTRIDER_TOKEN_PEPPER. Each can come from a file instead:
POSTRIDER_ENCRYPTION_KEY_FILE=/run/secrets/key. Every process listens, a worker for /health and /metrics only.
POSTRIDER_LOG sets what is logged, such as `info` or `warn,postrider_engine=debug`.";

/// Run a server: accept events over HTTP, deliver them, or both.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What this process does
    #[arg(long, value_enum, default_value = "all")]
    role: Role,
    /// TOML file with settings; environment variables win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on, instead of `POSTRIDER_LISTEN`
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// How long requests in hand may take to finish after the first SIGTERM
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(0..=3600))]
    drain_seconds: u64,
    /// How log lines look
    #[arg(long, value_enum, default_value = "json")]
    log_format: LogFormat,
}

pub(crate) async fn run(arguments: Arguments, mut environment: Environment) -> anyhow::Result<()> {
    let logs = Logs { format: arguments.log_format, default_filter: "info", to: Output::Stdout };
    telemetry::start_logs(logs, &environment)?;
    #[cfg(debug_assertions)]
    configuration::failpoint::arm(&mut environment)?;
    if let Some(listen) = arguments.listen {
        environment.set(setting::LISTEN.variable, listen.to_string());
    }
    let read = configuration::read(&environment, arguments.config.as_deref(), Configuration::section)?;
    let configuration = read.with_warnings_logged();
    let signals = Signals::register().context("signals cannot be watched")?;
    let address = configuration.http.listen;
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!(
            "cannot listen on {address}; choose another address with --listen or {}",
            setting::LISTEN.variable
        )
    })?;
    let shutdown = Shutdown::default();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let parts = Parts { configuration, role: arguments.role, listener, shutdown: shutdown.clone(), clock };
    let served = async {
        let process = Process::start(parts).await?;
        process.run(Duration::from_secs(arguments.drain_seconds)).await
    };
    tokio::select! {
        ended = served => ended,
        never = signals.watch(&shutdown) => match never {},
    }
}
