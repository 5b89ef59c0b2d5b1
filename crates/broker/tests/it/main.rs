//! Against real brokers and servers of the tests' own.

mod queue;
