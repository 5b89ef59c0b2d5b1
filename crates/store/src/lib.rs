//! Postrider's PostgreSQL: the only truth. Every SQL statement of the product lives in this crate.
//!
//! | module | what it does |
//! |---|---|
//! | [`ingest`], [`take`], [`settle`] | the way of an event: set-based statements over arrays, for many at once |
//! | [`recover`], [`promote`], [`hold`], [`expire`], [`discard`] | what maintenance moves between the states |
//! | [`replay`], [`retry`] | dead letters that a person sends again, many or one |
//! | [`routing`] | who may publish and who gets what, cached; ingest proves the copy inside its transaction |
//! | [`installation`], [`instances`], [`wake`], [`lanes`] | what processes agree on, their hearts, wake-ups, the lanes' connections |
//! | [`pool`] | the connections that requests are answered on, also by way of a pooler |
//! | [`rotation`] | replaces the installation's encryption key and pepper while it runs |
//! | [`audit`], [`wall`] | who did what; row-level security under the requests of tenants |
//! | [`tenants`], [`applications`], [`endpoints`], [`subscriptions`], … | what people edit, one file per aggregate |
//! | [`quota`] | what tenants with quotas have used, locked while their events are stored |
//! | [`migrate`] | the schema's versions |
//! | [`upkeep`] | keeps the queue's table and indexes small |
//! | [`backlog`] | what waits to be sent, and who is refused for it |
//! | [`oldest_transaction`] | what keeps PostgreSQL from cleaning up |
//! | [`failpoint`] | where a test makes a process die, stop or hang; empty in release builds |

mod error;
mod reopen;
mod row;
mod time_range;

pub mod applications;
pub mod attempts;
pub mod audit;
pub mod backlog;
pub mod broker_epoch;
pub mod credentials;
pub mod deliveries;
pub mod discard;
pub mod edit;
pub mod endpoints;
pub mod events;
pub mod expire;
pub mod failpoint;
pub mod hold;
pub mod ingest;
pub mod installation;
pub mod instances;
pub mod lanes;
pub mod management_keys;
pub mod migrate;
pub mod oldest_transaction;
pub mod outbox;
pub mod owners;
pub mod page;
pub mod pool;
pub mod promote;
pub mod quota;
pub mod recover;
pub mod registry;
pub mod replay;
pub mod retry;
pub mod rotation;
pub mod routing;
pub mod settle;
pub mod signing_keys;
pub mod subscriptions;
pub mod take;
pub mod tenants;
pub mod upkeep;
pub mod users;
pub mod wake;
pub mod wall;

pub use error::Error;
