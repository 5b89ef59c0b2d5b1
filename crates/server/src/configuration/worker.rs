//! How much a worker does at once.

use std::ops::RangeInclusive;

use super::{
    setting,
    source::{Recorded, Source, number},
};

/// Requests in flight at once unless set otherwise.
const DEFAULT_CONCURRENCY: u16 = 256;
/// Endpoints that are slow or unknown share parts of the slots; with fewer than four there are no parts.
const CONCURRENCY_BOUNDS: RangeInclusive<u16> = 4..=10_000;

#[derive(Debug)]
pub(crate) struct Worker {
    /// Requests in flight at once over all endpoints.
    pub(crate) concurrency: u16,
}

impl Worker {
    pub(crate) fn section(source: &mut Source<'_>) -> Result<Self, Recorded> {
        let concurrency = source.or_default(&setting::WORKER_CONCURRENCY, DEFAULT_CONCURRENCY, |text| {
            number(text, &CONCURRENCY_BOUNDS)
        });
        Ok(Self { concurrency: concurrency? })
    }
}
