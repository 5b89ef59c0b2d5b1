//! Tests of the fixtures, and of how the workspace hangs together.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod documents;
mod postgres;
mod proxy;
mod rooms;
mod scenario;
