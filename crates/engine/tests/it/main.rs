//! The engine against real parts: sockets on loopback, a real database.

mod delivery;
mod fairness;
mod races;
mod recovery;
mod transport;
mod upkeep;
