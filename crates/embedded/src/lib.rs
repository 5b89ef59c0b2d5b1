//! A private PostgreSQL cluster from installed binaries, for `postrider dev` and the tests.
//!
//! | module | role |
//! |---|---|
//! | [`binaries`] | finds `initdb` and `postgres`, 15 or newer |
//! | [`cluster`] | starts, stops and restarts one cluster |
//! | [`account`] | who the server runs as: PostgreSQL refuses root |
//! | `home` | the cluster's directory: where it may lie, who holds it |
//! | [`memory`] | how much of the machine's memory a server may use for pages |
//! | `initialise` | makes a new data directory, whole or not at all |
//! | `postmaster` | the server process: its pid file, its start, the orphan of an earlier run |
//! | [`guard`] | ends the server when the process that wanted it is gone |
//!
//! Invariants: a cluster belongs to one process at a time (a lock on its directory), is reachable only over
//! loopback or a socket in its own directory, and only with a random password that lies in a file with mode 0600, and no
//! signal is ever sent to a process that was not seen to serve that very data directory.

pub mod account;
pub mod binaries;
pub mod cluster;
pub mod guard;
mod home;
mod initialise;
pub mod memory;
mod postmaster;

pub use binaries::Binaries;
pub use cluster::{Cluster, Durability, Place, Settings, Shutdown};
