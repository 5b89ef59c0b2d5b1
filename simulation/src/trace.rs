//! What happened in a run, one line per step, and a hash of it all: two runs of one seed must have the same.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use postrider_core::id::{DeliveryId, EventId};

/// FNV-1a, 64 bits.
const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;
const HASH_FACTOR: u64 = 0x0000_0100_0000_01b3;

#[derive(Debug)]
pub struct Trace {
    pub lines: Vec<String>,
    hash: u64,
    events: HashMap<EventId, usize>,
    /// How often each kind of thing happened.
    pub counts: BTreeMap<String, u64>,
}

impl Trace {
    pub fn new() -> Self {
        Self { lines: Vec::new(), hash: HASH_START, events: HashMap::new(), counts: BTreeMap::new() }
    }

    pub fn line(&mut self, line: fmt::Arguments<'_>) {
        let line = format!("{:>5} {line}", self.lines.len() + 1);
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(HASH_FACTOR);
        }
        self.lines.push(line);
    }

    pub const fn hash(&self) -> u64 {
        self.hash
    }

    pub fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    pub fn name_event(&mut self, event: EventId) -> usize {
        let next = self.events.len() + 1;
        *self.events.entry(event).or_insert(next)
    }

    /// A delivery as `e3/1`: the event's number and its place in the plan.
    pub fn name(&self, delivery: DeliveryId) -> String {
        let place = delivery.as_uuid().as_u128() & 0xffff;
        match self.events.get(&delivery.event()) {
            Some(number) => format!("e{number}/{place}"),
            None => delivery.to_string(),
        }
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}
