//! Fixtures for Postrider's tests: real parts on loopback, never mocks of them.

pub mod answer;
pub mod authority;
pub mod chance;
pub mod clock;
pub mod copies;
pub mod guard;
pub mod ledger;
pub mod log;
pub mod pgbouncer;
pub mod postgres;
mod program;
pub mod proxy;
pub mod rabbitmq;
pub mod receiver;
pub mod redis;
mod run;
pub mod running;
pub mod scenario;
pub mod stall;
pub mod standby;
