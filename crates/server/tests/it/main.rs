//! The binary as an operator meets it: real processes, a real PostgreSQL, real receivers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod api;
mod apply;
mod bodies;
mod builds;
mod canary;
mod command_line;
mod dev;
mod direct_url;
mod early_answers;
mod endless_bodies;
mod faults;
mod guide;
mod identity;
mod killed;
mod limits;
mod pooler;
mod program;
mod roles;
mod secrecy;
mod serve;
mod server;
mod simulate;
mod soak;
mod tls;
mod vendor_secrecy;
mod verification;
