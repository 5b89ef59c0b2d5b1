//! Tests of the fixtures, and of how the workspace hangs together.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod alerts;
mod documents;
mod pgbouncer;
mod postgres;
mod proxy;
mod rabbitmq;
mod redis;
mod rooms;
mod scenario;
