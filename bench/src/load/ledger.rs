//! What happened to each event: when it was due, when it was accepted, when each endpoint got it.
//!
//! Invariant: a time is written once, by generator or sink, and read after both have stopped writing it. 0 is "not yet".

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::latency::Latency;

/// Where a latency begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Since {
    /// The event's due time: in the open loop by the timetable, also where it was sent late; in the closed loop the
    /// moment before it was sent.
    Due,
    /// The moment the publisher had read the `202`. An event may be received before that, which counts as 0.
    Accepted,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    due_ns: Box<[AtomicU64]>,
    accepted_ns: Box<[AtomicU64]>,
    /// By endpoint, then by event.
    received_ns: Box<[Box<[AtomicU64]>]>,
    received: AtomicU64,
    repeated: AtomicU64,
    unknown: AtomicU64,
    unserved: AtomicU64,
    last_received_ns: AtomicU64,
}

impl Ledger {
    pub(crate) fn new(events: u32, endpoints: u16) -> Self {
        let column = || (0..events).map(|_| AtomicU64::new(0)).collect();
        Self {
            due_ns: column(),
            accepted_ns: column(),
            received_ns: (0..endpoints).map(|_| column()).collect(),
            received: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            unserved: AtomicU64::new(0),
            last_received_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn note_due(&self, number: u32, due_ns: u64) {
        self.due_ns[index(number)].store(due_ns, Relaxed);
    }

    pub(crate) fn note_accepted(&self, number: u32, now_ns: u64) {
        self.accepted_ns[index(number)].store(now_ns, Relaxed);
    }

    /// `number` is what the body named, if anything.
    pub(crate) fn note_received(&self, endpoint: usize, number: Option<u32>, now_ns: u64) {
        let events = self.received_ns.get(endpoint);
        let Some(slot) = number.zip(events).and_then(|(number, events)| events.get(index(number))) else {
            self.unknown.fetch_add(1, Relaxed);
            return;
        };
        if slot.load(Relaxed) == 0 {
            slot.store(now_ns, Relaxed);
            self.last_received_ns.store(now_ns, Relaxed);
            self.received.fetch_add(1, Relaxed);
        } else {
            self.repeated.fetch_add(1, Relaxed);
        }
    }

    /// Events received, each once per endpoint.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Requests for what was received before.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated.load(Relaxed)
    }

    /// Requests that no event of this ledger explains.
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown.load(Relaxed)
    }

    /// A request came to a path that fails or hangs.
    pub(crate) fn note_unserved(&self) {
        self.unserved.fetch_add(1, Relaxed);
    }

    /// Requests to paths that fail or hang, so far.
    pub(crate) fn unserved(&self) -> u64 {
        self.unserved.load(Relaxed)
    }

    pub(crate) fn last_received_ns(&self) -> u64 {
        self.last_received_ns.load(Relaxed)
    }

    /// From `since` to the receipt, for every delivery of the events `numbers`.
    pub(crate) fn latency(&self, numbers: Range<u32>, since: Since) -> anyhow::Result<Option<Latency>> {
        let starts = match since {
            Since::Due => &self.due_ns,
            Since::Accepted => &self.accepted_ns,
        };
        let range = index(numbers.start)..index(numbers.end);
        let samples = self.received_ns.iter().flat_map(|received| {
            received[range.clone()].iter().zip(&starts[range.clone()]).filter_map(|(end, start)| {
                let (start, end) = (start.load(Relaxed), end.load(Relaxed));
                (start != 0 && end != 0).then(|| end.saturating_sub(start))
            })
        });
        Latency::of_ns(samples)
    }

    /// From the due time to the `202`, for the events `numbers`.
    pub(crate) fn answer_latency(&self, numbers: Range<u32>) -> anyhow::Result<Option<Latency>> {
        let range = index(numbers.start)..index(numbers.end);
        let pairs = self.due_ns[range.clone()].iter().zip(&self.accepted_ns[range]);
        Latency::of_ns(pairs.filter_map(|(start, end)| {
            let (start, end) = (start.load(Relaxed), end.load(Relaxed));
            (start != 0 && end != 0).then(|| end.saturating_sub(start))
        }))
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_are_counted_once_per_endpoint_and_strangers_apart() {
        let ledger = Ledger::new(2, 2);
        for (endpoint, number) in
            [(0, Some(0)), (0, Some(1)), (1, Some(0)), (0, Some(0)), (0, Some(2)), (2, Some(0)), (0, None)]
        {
            ledger.note_received(endpoint, number, 7_000_000);
        }
        assert_eq!((ledger.received(), ledger.repeated(), ledger.unknown()), (3, 1, 3));
    }

    #[test]
    fn latencies_count_from_the_stated_moment() {
        let ledger = Ledger::new(2, 1);
        ledger.note_due(1, 1_000_000);
        ledger.note_accepted(1, 9_000_000);
        ledger.note_received(0, Some(1), 5_000_000);
        let p50 = |since| ledger.latency(1..2, since).unwrap().unwrap().p50_ms;
        assert!((p50(Since::Due) - 4.0).abs() < 0.01);
        assert!(p50(Since::Accepted) < 0.01);
        assert!((ledger.answer_latency(0..2).unwrap().unwrap().p50_ms - 8.0).abs() < 0.01);
        assert!(ledger.latency(0..1, Since::Due).unwrap().is_none());
    }
}
