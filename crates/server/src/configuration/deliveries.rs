//! Where deliveries may go.

use std::{fs, path::Path};

use ipnet::IpNet;

use super::{
    networks::networks,
    setting,
    source::{Recorded, Source},
};

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
        let allowed_cidrs = source.or_default(&setting::ALLOWED_CIDRS, Vec::new(), networks);
        let extra_authorities_pem = source.optional(&setting::CA_FILE, |path| certificates(Path::new(path)));
        Ok(Self {
            allow_loopback: allow_loopback?,
            allowed_cidrs: allowed_cidrs?,
            extra_authorities_pem: extra_authorities_pem?,
        })
    }
}

/// Reads certificates in PEM.
pub(super) fn certificates(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let text =
        fs::read_to_string(path).map_err(|error| format!("names {shown}, which cannot be read: {error}"))?;
    if text.contains(BEGIN_CERTIFICATE) {
        Ok(text.into_bytes())
    } else {
        Err(format!("names {shown}, which holds no `{BEGIN_CERTIFICATE}`: give certificates in PEM"))
    }
}
