//! Connections that wait to be used again.
//!
//! Invariant: what [`Pool::take`] gives out is open, quiet, not older than its limit, leads to one of the addresses that the
//! host has now, and has only ever carried requests of the tenant that asks. A host that sends more answers than it was
//! asked for can send one at the very moment when the next request goes out; then it is read as that one's, and may
//! decide about no other tenant's delivery.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use postrider_core::{destination::Origin, id::TenantId};

use super::connection::Connection;

/// Most connections that one tenant keeps to one origin.
const MAX_IDLE_PER_ROUTE: usize = 64;
/// Most connections kept in all.
const MAX_IDLE: usize = 1_024;
/// How long a connection is kept unused: shorter than common servers wait, so that we close first.
pub(super) const MAX_IDLE_AGE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Pool(Mutex<Shelves>);

/// Who may use a connection, and where it leads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route<'o> {
    pub(super) tenant_id: TenantId,
    pub(super) origin: &'o Origin,
}

#[derive(Default)]
struct Shelves {
    by_tenant: HashMap<TenantId, HashMap<Origin, Vec<Idle>>>,
    count: usize,
    swept_at: Duration,
}

struct Idle {
    connection: Box<Connection>,
    since: Duration,
}

impl Pool {
    /// The connection used last, if there is one that still fits. Those that no longer do are closed, and now and then
    /// those of other routes that have waited too long.
    pub(super) fn take(
        &self,
        route: Route<'_>,
        addresses: &[IpAddr],
        now: Duration,
    ) -> Option<Box<Connection>> {
        loop {
            let idle = self.pop(route, now)?;
            let fits =
                now.saturating_sub(idle.since) < MAX_IDLE_AGE && addresses.contains(&idle.connection.peer());
            if fits && idle.connection.is_quiet() {
                return Some(idle.connection);
            }
        }
    }

    /// Keeps a connection, or closes it where there are enough.
    pub(super) fn put(&self, route: Route<'_>, connection: Box<Connection>, now: Duration) {
        let mut shelves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.sweep_in_turn(now);
        if shelves.count >= MAX_IDLE {
            return;
        }
        let idle = Idle { connection, since: now };
        let by_origin = shelves.by_tenant.entry(route.tenant_id).or_default();
        match by_origin.get_mut(route.origin) {
            Some(waiting) if waiting.len() >= MAX_IDLE_PER_ROUTE => return,
            Some(waiting) => waiting.push(idle),
            None => drop(by_origin.insert(route.origin.clone(), vec![idle])),
        }
        shelves.count += 1;
    }

    /// Closes connections that have waited too long.
    pub(super) fn sweep(&self, now: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sweep(now);
    }

    fn pop(&self, route: Route<'_>, now: Duration) -> Option<Idle> {
        let mut shelves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.sweep_in_turn(now);
        let idle = shelves.by_tenant.get_mut(&route.tenant_id)?.get_mut(route.origin)?.pop()?;
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
        self.by_tenant.retain(|_, by_origin| {
            by_origin.retain(|_, waiting| {
                waiting.retain(|idle| now.saturating_sub(idle.since) < MAX_IDLE_AGE);
                !waiting.is_empty()
            });
            !by_origin.is_empty()
        });
        self.count = self.by_tenant.values().flat_map(HashMap::values).map(Vec::len).sum();
    }
}
