//! Postrider's HTTP surface: one file per operation.
//!
//! [`router()`] serves everything over a [`State`]; [`document`] is the OpenAPI document generated from the same code.
//! An operation is a function whose parameters say who may call it ([`authenticate`]) and what it reads
//! ([`request`], [`body`]), whose answer is a success or a [`problem::Problem`], and whose annotation documents both.
//! Invariant: a handler learns the tenant from the credential alone.

pub mod address;
pub mod authenticate;
pub mod body;
pub mod page;
pub mod problem;
pub mod random;
pub mod refusals;
pub mod request;
pub mod state;

mod applications;
mod audit;
mod change;
mod credentials;
mod database;
mod deliveries;
mod endpoints;
mod events;
mod framing;
mod guard;
mod health;
mod keys;
mod limits;
mod login;
mod metrics;
mod misfit;
mod moment;
mod object;
mod openapi;
mod outage;
mod outdated;
mod publish;
mod replays;
mod router;
mod secret;
mod subscriptions;
mod tenants;
mod test_event;
mod unread;
mod users;

pub use health::OptionalDependency;
pub use publish::MAX_HELD_BYTES;
pub use router::{document, health_router, router};
pub use state::{Build, CheckOrigin, Settings, State};
