//! `postrider healthcheck`: asks a server whether it is ready.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use http::{Method, StatusCode};
use url::Url;

use crate::{
    client::{self, Ask},
    configuration,
    environment::Environment,
};

const EXAMPLES: &str = "\
Examples:
  postrider healthcheck
  postrider healthcheck --url http://127.0.0.1:9000 --timeout-seconds 10
  HEALTHCHECK CMD [\"postrider\", \"healthcheck\"]        (in a container file)";

/// Ask a server whether it is ready: exit status 0 if it is, 1 if not.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Where the server listens [default: `POSTRIDER_LISTEN` on this machine, else `http://127.0.0.1:8787`]
    #[arg(long)]
    url: Option<Url>,
    /// Longest wait for the answer
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout_seconds: u64,
}

pub(crate) async fn run(arguments: &Arguments, environment: &Environment) -> anyhow::Result<()> {
    let url = match &arguments.url {
        Some(url) => url.clone(),
        None => listening(environment)?,
    };
    let url = url.join("/health/ready").context("the URL cannot be asked")?;
    let ask = Ask { method: Method::GET, url: &url, bearer: None, body: None };
    let answer = client::ask(ask, Duration::from_secs(arguments.timeout_seconds)).await?;
    let said = String::from_utf8_lossy(&answer.body);
    if answer.status != StatusCode::OK {
        bail!("not ready: {} {}", answer.status, said.trim_end());
    }
    println!("{}", said.trim_end());
    Ok(())
}

/// Where a server with this environment is reached from its own machine.
fn listening(environment: &Environment) -> anyhow::Result<Url> {
    let read = configuration::read(environment, None, configuration::Http::section)?;
    let address = reachable(read.configuration.listen);
    Url::parse(&format!("http://{address}")).with_context(|| format!("{address} cannot be asked"))
}

/// Who listens on every interface is asked on loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let address = match listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        address => address,
    };
    SocketAddr::new(address, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_asked_where_it_listens_and_on_loopback_where_it_listens_everywhere() {
        for (listen, expected) in [
            ("", "http://127.0.0.1:8787/"),
            ("127.0.0.2:9000", "http://127.0.0.2:9000/"),
            ("0.0.0.0:9000", "http://127.0.0.1:9000/"),
            ("[::]:9000", "http://[::1]:9000/"),
            ("[2001:db8::1]:9000", "http://[2001:db8::1]:9000/"),
        ] {
            let mut environment = Environment::default();
            environment.set("POSTRIDER_LISTEN", listen);
            assert_eq!(listening(&environment).unwrap().as_str(), expected, "{listen}");
        }
        let mut environment = Environment::default();
        environment.set("POSTRIDER_LISTEN", "everywhere");
        let refused = listening(&environment).unwrap_err();
        assert!(refused.is::<configuration::Problems>(), "{refused:#}");
    }
}
