//! Against real brokers and servers of the tests' own.

mod limiter;
mod queue;
mod redis;
mod tls;
