//! The engine against real parts: sockets on loopback, a real database.

mod backlog;
mod credentials;
mod crowd;
mod delivery;
mod fairness;
mod races;
mod recovery;
mod replay;
mod retries;
mod tokens;
mod transport;
mod upkeep;
mod vendors;
