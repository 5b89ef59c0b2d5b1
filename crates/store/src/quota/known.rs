//! What one process knows of the tenants whose open deliveries it must know: whose it has counted, and whose are to be.

use std::{
    collections::{BTreeMap, HashSet},
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
            wanted.entry(tenant_id).or_insert(limit);
            self.asked.notify_one();
        }
    }

    pub(crate) fn is_wanted(&self, tenant_id: TenantId) -> bool {
        self.tenants().wanted.contains_key(&tenant_id)
    }

    /// Waits for a tenant that is to be counted. It stays so until it is struck off.
    pub async fn wanted(&self) -> Wanted {
        loop {
            let first = self.tenants().wanted.first_key_value().map(|(id, limit)| (*id, *limit));
            if let Some((tenant_id, limit)) = first {
                return Wanted { tenant_id, limit };
            }
            self.asked.notified().await;
        }
    }

    /// It was counted, or that failed: then it asks again.
    pub fn strike_off(&self, tenant_id: TenantId) {
        self.tenants().wanted.remove(&tenant_id);
    }

    fn tenants(&self) -> MutexGuard<'_, Tenants> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
