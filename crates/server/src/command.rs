//! The subcommands, one file each. They parse, wire and print; what they do lives in the other crates.

pub(crate) mod apply;
pub(crate) mod dev;
pub(crate) mod healthcheck;
pub(crate) mod keys;
pub(crate) mod migrate;
pub(crate) mod openapi;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod simulate;
