//! Random bytes for ids, tokens and nonces, from the operating system.

use crate::problem::Problem;

/// Fresh random bytes.
///
/// # Errors
/// `500` when the operating system gives none: nothing secret may be made then.
pub fn bytes<const N: usize>() -> Result<[u8; N], Problem> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Problem::internal(&error))?;
    Ok(bytes)
}
