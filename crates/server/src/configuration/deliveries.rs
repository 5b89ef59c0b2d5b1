//! Where deliveries may go.

use std::{fs, path::Path};

use ipnet::IpNet;
use postrider_engine::transport::authorities;

use super::{
    networks::networks,
    setting::{self, Setting},
    source::{Recorded, Source},
};

#[derive(Debug)]
pub(crate) struct Deliveries {
    /// Development only: endpoints may be `http://` on loopback addresses.
    pub(crate) allow_loopback: bool,
    /// Private ranges that deliveries may reach.
    pub(crate) allowed_cidrs: Vec<IpNet>,
    /// Further certificate authorities, in PEM.
    pub(crate) extra_authorities_pem: Option<Vec<u8>>,
}

impl Deliveries {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let allow_loopback = source.switch(&setting::ALLOW_LOOPBACK_ENDPOINTS);
        let allowed_cidrs = source.or_default(&setting::ALLOWED_CIDRS, Vec::new(), networks);
        let extra_authorities_pem = source.optional(&setting::CA_FILE, |path| certificates(Path::new(path)));
        Ok(Self {
            allow_loopback: allow_loopback?,
            allowed_cidrs: allowed_cidrs?,
            extra_authorities_pem: extra_authorities_pem?,
        })
    }
}

/// Reads certificates of authorities, in PEM.
pub(super) fn certificates(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let pem = fs::read(path).map_err(|error| format!("names {shown}, which cannot be read: {error}"))?;
    authorities(&pem).map_err(|error| format!("names {shown}, which is of no use: {error}"))?;
    Ok(pem)
}

/// Whoever names an authority believes that it is asked.
pub(super) fn nobody_asks(
    source: &mut Source<'_>,
    authorities: &'static Setting,
    url: &'static Setting,
    scheme: &str,
) -> Recorded {
    let mend =
        format!("is of no use, since {} is no {scheme}:// URL: change that, or leave this out", url.variable);
    source.record(authorities, mend)
}
