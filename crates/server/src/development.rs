//! What `postrider dev` adds to a server: secrets of its own, and an example that shows an event going the whole way.

mod example;
mod secrets;
mod summary;

pub(crate) use example::{Example, Shown, Surroundings};
pub(crate) use secrets::{DATABASE, SecretsFile};
pub(crate) use summary::Summary;
