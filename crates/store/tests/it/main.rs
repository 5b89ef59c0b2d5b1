//! The store against a real PostgreSQL.

mod migrate;
mod resources;
