//! The program as whoever starts it meets it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod command_line;
