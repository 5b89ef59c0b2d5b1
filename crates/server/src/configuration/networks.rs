//! Lists of address ranges.

use ipnet::IpNet;

const MAX_NETWORKS: usize = 100;

/// Reads ranges separated by commas.
pub(super) fn networks(text: &str) -> Result<Vec<IpNet>, String> {
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
    if networks.len() > MAX_NETWORKS {
        return Err(format!("has {} ranges: {MAX_NETWORKS} are the most", networks.len()));
    }
    Ok(networks)
}
