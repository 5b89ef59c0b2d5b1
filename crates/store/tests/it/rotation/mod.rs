//! Replacing the encryption key and the pepper.

mod encryption;
mod pepper;

use postrider_store::audit::{Actor, By};

/// Whoever runs the command.
pub(crate) fn by() -> By {
    By { actor: Actor::CommandLine, address: None }
}
