//! Random bytes for secrets, nonces and seeds, from the operating system.

use anyhow::anyhow;

/// Fresh random bytes; nothing secret may be made where there are none.
pub(crate) fn bytes<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("no random bytes: {error}"))?;
    Ok(bytes)
}
