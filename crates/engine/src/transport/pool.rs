//! Connections that wait to be used again.
//!
//! Invariant: what [`Pool::take`] gives out is open, quiet, not older than its limit, and leads to one of the addresses
//! that the host has now.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use postrider_core::destination::Origin;

use super::connection::Connection;

/// Most connections kept for one origin.
const MAX_IDLE_PER_ORIGIN: usize = 64;
/// Most connections kept in all.
const MAX_IDLE: usize = 1_024;
/// How long a connection is kept unused: shorter than common servers wait, so that we close first.
pub(super) const MAX_IDLE_AGE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Pool(Mutex<Shelves>);

#[derive(Default)]
struct Shelves {
    by_origin: HashMap<Origin, Vec<Idle>>,
    count: usize,
    swept_at: Duration,
}

struct Idle {
    connection: Box<Connection>,
    since: Duration,
}

impl Pool {
    /// The connection used last, if there is one that still fits. Those that no longer do are closed, and now and then
    /// those of other origins that have waited too long.
    pub(super) fn take(
        &self,
        origin: &Origin,
        addresses: &[IpAddr],
        now: Duration,
    ) -> Option<Box<Connection>> {
        loop {
            let idle = self.pop(origin, now)?;
            let fits =
                now.saturating_sub(idle.since) < MAX_IDLE_AGE && addresses.contains(&idle.connection.peer());
            if fits && idle.connection.is_quiet() {
                return Some(idle.connection);
            }
        }
    }

    /// Keeps a connection, or closes it where there are enough.
    pub(super) fn put(&self, origin: &Origin, connection: Box<Connection>, now: Duration) {
        let mut shelves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.sweep_in_turn(now);
        if shelves.count >= MAX_IDLE {
            return;
        }
        let idle = Idle { connection, since: now };
        match shelves.by_origin.get_mut(origin) {
            Some(waiting) if waiting.len() >= MAX_IDLE_PER_ORIGIN => return,
            Some(waiting) => waiting.push(idle),
            None => drop(shelves.by_origin.insert(origin.clone(), vec![idle])),
        }
        shelves.count += 1;
    }

    /// Closes connections that have waited too long.
    pub(super) fn sweep(&self, now: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sweep(now);
    }

    fn pop(&self, origin: &Origin, now: Duration) -> Option<Idle> {
        let mut shelves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.sweep_in_turn(now);
        let idle = shelves.by_origin.get_mut(origin)?.pop()?;
        shelves.count -= 1;
        Some(idle)
    }
}

impl Shelves {
    /// Sweeps if the last time is long enough ago that there may be something to close.
    fn sweep_in_turn(&mut self, now: Duration) {
        if now.saturating_sub(self.swept_at) >= MAX_IDLE_AGE {
            self.sweep(now);
        }
    }

    fn sweep(&mut self, now: Duration) {
        self.swept_at = now;
        self.by_origin.retain(|_, waiting| {
            waiting.retain(|idle| now.saturating_sub(idle.since) < MAX_IDLE_AGE);
            !waiting.is_empty()
        });
        self.count = self.by_origin.values().map(Vec::len).sum();
    }
}
