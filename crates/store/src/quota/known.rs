//! What one process knows of the tenants whose open deliveries it must know: whose it has counted, and whose are to be.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Bound,
    sync::{Mutex, MutexGuard, PoisonError},
};

use postrider_core::id::TenantId;
use tokio::sync::Notify;

/// Tenants remembered; beyond that the memory starts afresh, which costs each of them a count.
const MAX_REMEMBERED_TENANTS: usize = 100_000;
/// Tenants that wait to be counted; further ones ask again with their next event.
const MAX_WANTED_TENANTS: usize = 10_000;

/// The tenants whose open deliveries this process has counted since it began. Before that it trusts no number: the tenant
/// may have had no quotas under the settings of another process, or of the one before this, and nobody added.
///
/// Those who have much open are counted apart ([`super::count`]), one after the other.
#[derive(Debug, Default)]
pub struct Known {
    tenants: Mutex<Tenants>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct Tenants {
    counted: HashSet<TenantId>,
    /// What they are held against.
    wanted: BTreeMap<TenantId, u64>,
    /// Who was counted last.
    last: Option<TenantId>,
}

/// A tenant whose open deliveries are to be counted, and how far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub tenant_id: TenantId,
    pub limit: u64,
}

impl Known {
    pub(crate) fn contains(&self, tenant_id: TenantId) -> bool {
        self.tenants().counted.contains(&tenant_id)
    }

    pub(crate) fn note(&self, tenant_id: TenantId) {
        let counted = &mut self.tenants().counted;
        if counted.len() >= MAX_REMEMBERED_TENANTS {
            counted.clear();
        }
        counted.insert(tenant_id);
    }

    /// Has a tenant counted soon; once, however many ask until then.
    pub(crate) fn want(&self, tenant_id: TenantId, limit: u64) {
        let wanted = &mut self.tenants().wanted;
        if wanted.len() < MAX_WANTED_TENANTS {
            // The quota may have been raised since it was asked for.
            wanted.entry(tenant_id).and_modify(|most| *most = limit.max(*most)).or_insert(limit);
            self.asked.notify_one();
        }
    }

    pub(crate) fn is_wanted(&self, tenant_id: TenantId) -> bool {
        self.tenants().wanted.contains_key(&tenant_id)
    }

    /// Waits for a tenant that is to be counted. It stays so until it is struck off.
    pub async fn wanted(&self) -> Wanted {
        loop {
            let next = self.tenants().next();
            if let Some(wanted) = next {
                return wanted;
            }
            self.asked.notified().await;
        }
    }

    /// It was counted, or that failed: then it asks again.
    pub fn strike_off(&self, tenant_id: TenantId) {
        let mut tenants = self.tenants();
        tenants.wanted.remove(&tenant_id);
        tenants.last = Some(tenant_id);
    }

    fn tenants(&self) -> MutexGuard<'_, Tenants> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenants {
    /// The next one after who was last, in the order of their ids: whoever asks again and again, as who cannot be counted
    /// does, keeps nobody waiting for more than one turn.
    fn next(&self) -> Option<Wanted> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.wanted.range((after, Bound::Unbounded)).next();
        let (&tenant_id, &limit) = next.or_else(|| self.wanted.first_key_value())?;
        Some(Wanted { tenant_id, limit })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use uuid::Uuid;

    use super::*;

    fn id(number: u128) -> TenantId {
        Uuid::from_u128(number).into()
    }

    fn next(known: &Known) -> Option<Wanted> {
        known.wanted().now_or_never()
    }

    #[test]
    fn tenants_that_ask_again_and_again_take_turns() {
        let known = Known::default();
        let mut turns = Vec::new();
        for _ in 0..6 {
            for number in [1, 2, 3] {
                known.want(id(number), 10);
            }
            let Wanted { tenant_id, .. } = next(&known).unwrap();
            known.strike_off(tenant_id);
            turns.push(tenant_id);
        }
        assert_eq!(turns, [1, 2, 3, 1, 2, 3].map(id));
        known.strike_off(id(1));
        known.strike_off(id(2));
        assert_eq!(next(&known), None);
    }

    #[test]
    fn a_tenant_is_counted_as_far_as_the_largest_quota_that_was_asked_for() {
        let known = Known::default();
        for limit in [10, 30, 20] {
            known.want(id(1), limit);
        }
        assert_eq!(next(&known), Some(Wanted { tenant_id: id(1), limit: 30 }));
    }
}
