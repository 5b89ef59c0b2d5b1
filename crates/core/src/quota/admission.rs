//! Which events of a batch are within their tenants' quotas: one after the other, in the order of the batch.
//!
//! Invariant: what stores nothing costs nothing. An event whose key exists is let through, to be told of the one that has
//! it; so is one whose key is that of an earlier event of the batch that was let through.

use std::{collections::HashSet, hash::Hash};

use time::OffsetDateTime;

use super::{Demand, Excess, Quotas, Usage};

/// An event that asks to be accepted.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a, K> {
    /// Place of its tenant's usage.
    pub account: usize,
    pub quotas: &'a Quotas,
    pub demand: Demand,
    pub key: Option<K>,
    /// Its key is known to exist.
    pub is_repeat: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Within the quotas; what it uses was added.
    Counted,
    /// It stores nothing, and may pass.
    Free,
    Refused(Excess),
}

/// Decides, and adds what the admitted use to `accounts`. One whose account is missing is let through.
pub fn decide<'a, K: Eq + Hash>(
    accounts: &mut [Usage],
    candidates: impl IntoIterator<Item = Candidate<'a, K>>,
    now: OffsetDateTime,
) -> Vec<Verdict> {
    let mut admitted = HashSet::new();
    let mut verdict = |Candidate { account, quotas, demand, key, is_repeat }: Candidate<'a, K>| {
        let Some(usage) = accounts.get_mut(account) else { return Verdict::Free };
        if is_repeat || key.as_ref().is_some_and(|key| admitted.contains(key)) {
            return Verdict::Free;
        }
        if let Err(excess) = usage.check(quotas, demand, now) {
            return Verdict::Refused(excess);
        }
        usage.add(demand, now);
        admitted.extend(key);
        Verdict::Counted
    };
    candidates.into_iter().map(&mut verdict).collect()
}
