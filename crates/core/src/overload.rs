//! Whom to refuse while more deliveries wait to be sent than an installation wants to hold.
//!
//! Invariant: whoever has little waiting is taken, however much the others have. Over the limit tenants are held to equal
//! shares of it (max-min: Bertsekas and Gallager 1992, section 6.5.2): what small ones leave of theirs goes to the larger
//! ones, and those that have more than their share are refused. Where one tenant causes the backlog, it alone is.

use std::{collections::HashMap, num::NonZeroU64};

use crate::id::TenantId;

/// Everybody is taken again below so much of the limit, in per cent: not at the limit itself, or the answers would change
/// with every look.
const REOPENS_PERCENT: u64 = 80;

/// Most deliveries that may wait to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(NonZeroU64);

/// Who is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verdict {
    #[default]
    Nobody,
    /// These, each for what it has waiting.
    Tenants(HashMap<TenantId, Excess>),
    /// All: so much waits for the broker, and it is not known whose.
    Everybody { waiting: u64 },
}

/// More than a tenant's share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    pub waiting: u64,
    pub share: u64,
}

impl Limit {
    pub const fn new(deliveries: NonZeroU64) -> Self {
        Self(deliveries)
    }

    pub const fn deliveries(self) -> u64 {
        self.0.get()
    }

    /// As long as fewer wait, everybody is taken, whatever was before.
    pub fn reopens_below(self) -> u64 {
        // At least one, or nothing would ever be below it.
        reopening(self.0.get()).max(1)
    }

    fn is_reached_by(self, total: u64) -> bool {
        total >= self.0.get()
    }

    /// Whom to refuse, given what each tenant has waiting and who was refused before.
    #[must_use]
    pub fn judge(self, waiting: &[(TenantId, u64)], before: &Verdict) -> Verdict {
        let total = waiting.iter().fold(0_u64, |total, (_, count)| total.saturating_add(*count));
        let was_over = *before != Verdict::Nobody;
        if total < self.reopens_below() || !was_over && !self.is_reached_by(total) {
            return Verdict::Nobody;
        }
        let share = equal_share(waiting, self.reopens_below());
        let refused = |tenant_id: &TenantId, count: u64| {
            let is_still_close = before.refuses(*tenant_id) && count > reopening(share);
            count > share || is_still_close
        };
        let excess = waiting.iter().filter(|(tenant_id, count)| refused(tenant_id, *count));
        let tenants: HashMap<_, _> =
            excess.map(|(tenant_id, count)| (*tenant_id, Excess { waiting: *count, share })).collect();
        if tenants.is_empty() { Verdict::Nobody } else { Verdict::Tenants(tenants) }
    }

    /// The same for deliveries whose tenants are not known.
    #[must_use]
    pub fn judge_all(self, waiting: u64, before: &Verdict) -> Verdict {
        let was_over = matches!(before, Verdict::Everybody { .. });
        if waiting >= self.reopens_below() && (was_over || self.is_reached_by(waiting)) {
            Verdict::Everybody { waiting }
        } else {
            Verdict::Nobody
        }
    }
}

impl Verdict {
    pub fn refuses(&self, tenant_id: TenantId) -> bool {
        match self {
            Self::Nobody => false,
            Self::Tenants(tenants) => tenants.contains_key(&tenant_id),
            Self::Everybody { .. } => true,
        }
    }
}

fn reopening(level: u64) -> u64 {
    // Wide enough for any number.
    let level = u128::from(level) * u128::from(REOPENS_PERCENT) / 100;
    u64::try_from(level).unwrap_or(u64::MAX)
}

/// What each may have if all together are to have so much: whoever wants less gets what it wants.
fn equal_share(wanted: &[(TenantId, u64)], together: u64) -> u64 {
    let mut counts: Vec<u64> = wanted.iter().map(|(_, count)| *count).collect();
    counts.sort_unstable();
    let (mut left, mut sharers) = (together, counts.len() as u64);
    for count in counts {
        let share = left / sharers;
        if count > share {
            return share;
        }
        left -= count;
        sharers -= 1;
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn tenant(name: char) -> TenantId {
        TenantId::from_uuid(Uuid::from_u128(u128::from(u32::from(name))))
    }

    fn waiting(counts: &[(char, u64)]) -> Vec<(TenantId, u64)> {
        counts.iter().map(|(name, count)| (tenant(*name), *count)).collect()
    }

    fn limit(deliveries: u64) -> Limit {
        Limit::new(NonZeroU64::new(deliveries).unwrap())
    }

    fn refused(verdict: &Verdict, counts: &[(char, u64)]) -> String {
        counts.iter().map(|(name, _)| *name).filter(|name| verdict.refuses(tenant(*name))).collect()
    }

    #[test]
    fn over_the_limit_those_with_more_than_their_share_are_refused() {
        for (counts, expected) in [
            (&[][..], ""),
            (&[('a', 999)], ""),
            (&[('a', 1_000)], "a"),
            // One causes it: it alone.
            (&[('a', 5_000_000), ('b', 0), ('c', 1), ('d', 150)], "a"),
            // Two do.
            (&[('a', 600), ('b', 500), ('c', 10)], "ab"),
            // Equal shares of 800, of which the small one leaves most.
            (&[('a', 700), ('b', 390), ('c', 10)], "a"),
            (&[('a', 250), ('b', 250), ('c', 250), ('d', 250), ('e', 0)], "abcd"),
            // So many that there is less than one for each.
            (&[('a', u64::MAX), ('b', u64::MAX)], "ab"),
        ] {
            let verdict = limit(1_000).judge(&waiting(counts), &Verdict::Nobody);
            assert_eq!(refused(&verdict, counts), expected, "{counts:?}");
        }
        let verdict = limit(1_000).judge(&waiting(&[('a', 1_200), ('b', 100)]), &Verdict::Nobody);
        let Verdict::Tenants(tenants) = verdict else { panic!("{verdict:?}") };
        assert_eq!(tenants[&tenant('a')], Excess { waiting: 1_200, share: 700 });
    }

    #[test]
    fn everybody_is_taken_again_only_some_way_below_the_limit() {
        let mut verdict = Verdict::Nobody;
        for (count, expected) in [
            (999, false),
            (1_000, true),
            (999, true),
            (801, true),
            (799, false),
            (999, false),
            (1_001, true),
            (0, false),
        ] {
            verdict = limit(1_000).judge(&waiting(&[('a', count)]), &verdict);
            assert_eq!(verdict.refuses(tenant('a')), expected, "{count}");
        }
        let mut verdict = Verdict::Nobody;
        for (count, expected) in [(999, false), (1_000, true), (800, true), (799, false), (999, false)] {
            verdict = limit(1_000).judge_all(count, &verdict);
            assert_eq!(verdict.refuses(tenant('z')), expected, "{count} of anybody's");
        }
    }

    #[test]
    fn a_tenant_near_its_share_is_not_taken_and_refused_by_turns() {
        let first = limit(1_000).judge(&waiting(&[('a', 600), ('b', 600)]), &Verdict::Nobody);
        assert_eq!(refused(&first, &[('a', 0), ('b', 0)]), "ab");
        // The share is 400 now and then; who was refused has to get further down.
        let second = limit(1_000).judge(&waiting(&[('a', 390), ('b', 600)]), &first);
        assert_eq!(refused(&second, &[('a', 0), ('b', 0)]), "ab");
        let third = limit(1_000).judge(&waiting(&[('a', 300), ('b', 700)]), &second);
        assert_eq!(refused(&third, &[('a', 0), ('b', 0)]), "b");
    }

    #[test]
    fn every_limit_can_be_fallen_below() {
        for (deliveries, expected) in
            [(1, 1), (2, 1), (10, 8), (1_000_000, 800_000), (u64::MAX, 14_757_395_258_967_641_292)]
        {
            assert_eq!(limit(deliveries).reopens_below(), expected, "{deliveries}");
        }
    }
}
