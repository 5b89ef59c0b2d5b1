//! The engine against real parts: sockets on loopback, a real database.

mod delivery;
mod fairness;
mod recovery;
mod transport;
