//! Replacing the installation's own secrets while it runs: the key that seals, and the pepper that tokens are hashed with.
//!
//! | module | what it does |
//! |---|---|
//! | [`sealed`] | the columns that hold sealed values, and the statements on each |
//! | [`encryption`] | seals every stored value anew under the current key |
//! | [`pepper`] | moves the installation from one pepper to the next |
//! | [`tokens`] | the tokens that come after it: stored anew when they are used, revoked at the end |
//!
//! Invariant: whatever stops a rotation, at any moment, leaves an installation that works, and the same command goes on
//! from there.

pub mod encryption;
pub mod pepper;
pub mod sealed;
pub mod tokens;
