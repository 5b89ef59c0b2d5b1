//! Fixtures for Postrider's tests: real parts on loopback, never mocks of them.

pub mod answer;
pub mod authority;
pub mod chance;
pub mod clock;
pub mod guard;
pub mod ledger;
pub mod postgres;
pub mod proxy;
pub mod receiver;
pub mod running;
pub mod scenario;
pub mod stall;
pub mod standby;
