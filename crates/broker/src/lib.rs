//! What many processes may share beside PostgreSQL, each part behind its port in `core`, and each of them optional:
//!
//! - [`rabbit`]: messages about deliveries that are ready, so that a fleet need not look for them in the table;
//! - [`redis`]: limits that hold over all processes.
//!
//! Invariant: this crate knows `core` and `store` only. The engine does not know it; the server joins the two. Nothing here
//! holds the truth: what it loses makes Postrider slower or less even, and nothing else.

pub mod rabbit;
pub mod redis;
