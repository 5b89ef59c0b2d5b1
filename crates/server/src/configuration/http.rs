//! Where the HTTP surface listens.

use std::net::{Ipv4Addr, SocketAddr};

use ipnet::IpNet;

use super::{
    networks::networks,
    setting,
    source::{Recorded, Source},
};

/// Loopback: reaching further is the operator's decision.
pub(crate) const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8787);

#[derive(Debug)]
pub(crate) struct Http {
    pub(crate) listen: SocketAddr,
    /// Proxies whose word about where a request comes from is believed.
    pub(crate) trusted_proxies: Vec<IpNet>,
}

impl Http {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let listen = source.or_default(&setting::LISTEN, DEFAULT_LISTEN, |text| {
            text.parse().map_err(|_| {
                "takes an IP address and a port, such as 127.0.0.1:8787, or 0.0.0.0:8787 for every interface".to_owned()
            })
        });
        let trusted_proxies = source.or_default(&setting::TRUSTED_PROXIES, Vec::new(), networks);
        Ok(Self { listen: listen?, trusted_proxies: trusted_proxies? })
    }
}
