//! Logs and metrics of the process.

use std::{convert::Infallible, sync::Arc, time::Duration};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use postrider_engine::{clock::Clock, instruments, supervisor::Shutdown};
use tracing_subscriber::{EnvFilter, fmt, util::SubscriberInitExt as _};

use crate::{configuration::setting, environment::Environment};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line, for machines.
    Json,
}

/// Where log lines go and which.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Logs {
    pub(crate) format: LogFormat,
    /// What is logged unless `POSTRIDER_LOG` says otherwise.
    pub(crate) default_filter: &'static str,
    pub(crate) to: Output,
}

/// The stream that log lines go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Stdout,
    /// Where stdout carries what the command is for.
    Stderr,
}

/// Bounds of latency histograms, in seconds.
const LATENCY_BOUNDS_S: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
];

/// Bounds of histograms of how many items were handled at once.
const BATCH_BOUNDS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];

/// Between two upkeeps of the metrics.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Leaves out what the pool says of each connection that was lost, when it would hand one out and when it gets one
/// back, and what the broker's client says of each try. The process itself says once that the database or the broker is
/// away, and that it is back. Whoever says what is logged has it all.
const WITHOUT_EACH_CONNECTION: &str =
    "sqlx_core::pool::inner=warn,sqlx_core::pool::connection=error,lapin=off,amq_protocol=off";

/// Starts logging. Called once, before anything logs.
pub(crate) fn start_logs(logs: Logs, environment: &Environment) -> anyhow::Result<()> {
    let filter = match environment.get(setting::LOG.variable) {
        None => EnvFilter::new(format!("{},{WITHOUT_EACH_CONNECTION}", logs.default_filter)),
        Some(directives) => EnvFilter::try_new(directives).with_context(|| {
            format!("{} takes levels such as `info` or `warn,postrider_engine=debug`", setting::LOG.variable)
        })?,
    };
    let writer = match logs.to {
        Output::Stdout => fmt::writer::BoxMakeWriter::new(std::io::stdout),
        Output::Stderr => fmt::writer::BoxMakeWriter::new(std::io::stderr),
    };
    let builder = fmt().with_env_filter(filter).with_writer(writer);
    match logs.format {
        LogFormat::Text => builder.with_ansi(false).finish().try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).finish().try_init(),
    }
    .map_err(|error| anyhow!("the logs could not be started: {error}"))
}

/// Starts recording metrics; the returned handle prints them for Prometheus.
pub(crate) fn start_metrics() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), LATENCY_BOUNDS_S)?
        .set_buckets_for_metric(Matcher::Suffix("_batch_size".to_owned()), BATCH_BOUNDS)?
        .install_recorder()?;
    instruments::register();
    Ok(handle)
}

/// Sorts new samples into their histograms until the drain. Otherwise only a scrape does, and where nobody scrapes they
/// would pile up one by one.
pub(crate) async fn keep_up(
    upkeep: impl Fn(),
    clock: Arc<dyn Clock>,
    shutdown: Shutdown,
) -> Result<(), Infallible> {
    loop {
        tokio::select! {
            () = shutdown.draining() => return Ok(()),
            () = clock.sleep(UPKEEP_INTERVAL) => upkeep(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use postrider_testkit::clock::FakeClock;

    use super::*;

    #[tokio::test]
    async fn samples_are_sorted_until_the_drain_though_nobody_scrapes() {
        let (clock, shutdown, rounds) = (FakeClock::default(), Shutdown::default(), AtomicUsize::new(0));
        let count = || {
            rounds.fetch_add(1, Relaxed);
        };
        let watch = async {
            for round in 1..=3 {
                clock.sleepers(1).await;
                clock.advance(UPKEEP_INTERVAL);
                // The next sleep begins after the upkeep.
                while rounds.load(Relaxed) < round {
                    tokio::task::yield_now().await;
                }
            }
            shutdown.drain();
        };
        let (ended, ()) = tokio::join!(keep_up(count, Arc::new(clock.clone()), shutdown.clone()), watch);
        assert!(ended.is_ok());
        assert_eq!(rounds.load(Relaxed), 3);
    }
}
