//! Generator and sink: raw HTTP/1.1 on a thread each, so light that the product is measured and not they.

pub(crate) mod generator;
pub(crate) mod latency;
pub(crate) mod ledger;
pub(crate) mod message;
pub(crate) mod schedule;
pub(crate) mod sink;
pub(crate) mod wire;
