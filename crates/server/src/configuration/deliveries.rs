//! Where deliveries may go.

use std::{fs, path::Path};

use ipnet::IpNet;

use super::{
    setting,
    source::{Recorded, Source},
};

const MAX_ALLOWED_CIDRS: usize = 100;
const BEGIN_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

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
        let allowed_cidrs = source.or_default(&setting::ALLOWED_CIDRS, Vec::new(), cidrs);
        let extra_authorities_pem = source.optional(&setting::CA_FILE, |path| certificates(Path::new(path)));
        Ok(Self {
            allow_loopback: allow_loopback?,
            allowed_cidrs: allowed_cidrs?,
            extra_authorities_pem: extra_authorities_pem?,
        })
    }
}

fn cidrs(text: &str) -> Result<Vec<IpNet>, String> {
    let parsed: Result<Vec<IpNet>, _> = text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| {
            let network: IpNet = item.parse().map_err(|_| {
                format!("has `{item}`, which is no range: write ranges as 10.1.0.0/16, separated by commas")
            })?;
            if network.addr() == network.network() {
                Ok(network)
            } else {
                Err(format!("has `{item}`, whose address lies inside its range: write {}", network.trunc()))
            }
        })
        .collect();
    let networks = parsed?;
    if networks.len() > MAX_ALLOWED_CIDRS {
        return Err(format!("has {} ranges: {MAX_ALLOWED_CIDRS} are the most", networks.len()));
    }
    Ok(networks)
}

fn certificates(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let text =
        fs::read_to_string(path).map_err(|error| format!("names {shown}, which cannot be read: {error}"))?;
    if text.contains(BEGIN_CERTIFICATE) {
        Ok(text.into_bytes())
    } else {
        Err(format!("names {shown}, which holds no `{BEGIN_CERTIFICATE}`: give certificates in PEM"))
    }
}
