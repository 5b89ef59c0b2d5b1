//! `postrider healthcheck`: asks a server whether it is ready.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use http::{Method, StatusCode};
use url::Url;

use crate::client::{self, Ask};

const EXAMPLES: &str = "\
Examples:
  postrider healthcheck
  postrider healthcheck --url http://127.0.0.1:9000 --timeout-seconds 10
  HEALTHCHECK CMD [\"postrider\", \"healthcheck\"]        (in a container file)";

/// Ask a server whether it is ready: exit status 0 if it is, 1 if not.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Where the server listens
    #[arg(long, default_value = "http://127.0.0.1:8787")]
    url: Url,
    /// Longest wait for the answer
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout_seconds: u64,
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let url = arguments.url.join("/health/ready").context("the URL cannot be asked")?;
    let ask = Ask { method: Method::GET, url: &url, bearer: None, body: None };
    let answer = client::ask(ask, Duration::from_secs(arguments.timeout_seconds)).await?;
    let said = String::from_utf8_lossy(&answer.body);
    if answer.status != StatusCode::OK {
        bail!("not ready: {} {}", answer.status, said.trim_end());
    }
    println!("{}", said.trim_end());
    Ok(())
}
