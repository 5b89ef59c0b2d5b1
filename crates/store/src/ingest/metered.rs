//! Batches with events of tenants that have quotas: the same statement as everybody's, within a transaction that holds
//! the rows of what these tenants have used.
//!
//! Invariant: a tenant's quotas hold exactly, however many processes store its events. Who has the row stores alone; what
//! was stored is added before the row is let go; and whoever waits for it reads it as it is then. An event that is over
//! a quota stores nothing, and one whose key exists is never over a quota.

use std::collections::{BTreeMap, BTreeSet};

use postrider_core::{
    id::TenantId,
    quota::{Candidate, Demand, Excess, Quota, Usage, Verdict, decide},
};
use sqlx::{Connection as _, PgConnection, PgTransaction};
use time::OffsetDateTime;

use super::{
    Batch, Item, Onward, Stored, insert_within,
    standing::{Standing, standings},
};
use crate::{
    error::Error,
    failpoint::{self, Point},
    quota::{self, AT_ONCE, Account, Known},
};

/// The locked rows of a batch's tenants.
struct Books {
    /// Database time of the transaction.
    now: OffsetDateTime,
    accounts: Vec<Account>,
    /// Whether a row was changed that is to be written back.
    is_changed: bool,
    /// The tenants whose open deliveries this process has counted for the first time.
    counted_first: Vec<TenantId>,
    /// Places of those who have too many to be counted here, and before whose count nothing is known.
    uncounted: BTreeSet<usize>,
}

/// What is to become of an item.
#[derive(Debug, Clone, Copy)]
enum Judged {
    /// It is stored if its plan is current and its key is free, and then counts.
    Counted,
    /// Its key is taken, or its tenant has no quotas.
    Free,
    Stale,
    Refused(Excess),
    /// What its tenant has open is being counted.
    Uncounted,
}

impl Item<'_> {
    /// Whether its tenant has quotas.
    pub fn is_metered(&self) -> bool {
        self.routing.limits.quotas.is_any()
    }

    fn demand(&self) -> Demand {
        Demand { bytes: self.event.body.len() as u64, deliveries: self.deliveries.len() as u64 }
    }
}

/// Stores a batch as [`super::insert`] does, those events that are within their tenants' quotas. On an error nothing is
/// stored, save that it is not known where the database was lost while it committed.
pub async fn insert_metered(
    connection: &mut PgConnection,
    items: &[Item<'_>],
    onward: Onward,
    known: &Known,
) -> Result<Batch, Error> {
    let mut tenants: Vec<TenantId> =
        items.iter().filter(|item| item.is_metered()).map(|item| item.routing.tenant_id).collect();
    tenants.sort_unstable();
    tenants.dedup();
    if let Some(batch) = try_insert(connection, items, &tenants, onward, known).await? {
        return Ok(batch);
    }
    // Made on their own: whoever holds rows may only wait for those of later tenants.
    quota::open_accounts(connection, &tenants).await?;
    let stored = try_insert(connection, items, &tenants, onward, known).await?;
    Ok(stored.unwrap_or_else(|| Batch::to_repeat(OffsetDateTime::UNIX_EPOCH, items.len())))
}

/// `None` where a tenant has no row yet.
async fn try_insert(
    connection: &mut PgConnection,
    items: &[Item<'_>],
    tenants: &[TenantId],
    onward: Onward,
    known: &Known,
) -> Result<Option<Batch>, Error> {
    let mut transaction = connection.begin().await?;
    let locked = quota::lock(&mut transaction, tenants).await?;
    if locked.len() < tenants.len() {
        transaction.rollback().await?;
        return Ok(None);
    }
    let mut books = Books::new(locked);
    let judged = judge(&mut transaction, items, &mut books, known).await?;
    let (mut accepted_at, mut found) = (books.now, Vec::new());
    let admitted: Vec<Item<'_>> =
        items.iter().zip(&judged).filter(|(_, judged)| judged.is_passing()).map(|(item, _)| *item).collect();
    if !admitted.is_empty() {
        let batch = insert_within(&mut transaction, &admitted, onward).await?;
        (accepted_at, found) = (batch.accepted_at, batch.stored);
    }
    let mut found = found.into_iter();
    let stored: Vec<Stored> = judged
        .iter()
        .map(|judged| match *judged {
            Judged::Counted | Judged::Free => found.next().unwrap_or(Stored::Stale),
            Judged::Stale => Stored::Stale,
            Judged::Refused(excess) => Stored::OverQuota(excess),
            Judged::Uncounted => Stored::Uncounted,
        })
        .collect();
    let slipped = items.iter().zip(&judged).zip(&stored).any(|((item, judged), stored)| {
        item.is_metered() && matches!(judged, Judged::Free) && *stored == Stored::New
    });
    if slipped {
        // A key vanished between two looks, and what nobody counted would be stored: all of it once more.
        transaction.rollback().await?;
        return Ok(Some(Batch::to_repeat(accepted_at, items.len())));
    }
    books.add(items, &judged, &stored);
    if books.is_changed {
        quota::record(&mut transaction, &books.accounts).await?;
    }
    if books.is_changed || stored.contains(&Stored::New) {
        failpoint::reach(Point::IngestWritten).await;
        transaction.commit().await?;
        failpoint::reach(Point::IngestCommitted).await;
        // Not before: what was counted would be forgotten, and what was written down before be believed.
        for tenant_id in books.counted_first {
            known.note(tenant_id);
        }
    } else {
        transaction.rollback().await?;
    }
    Ok(Some(Batch { accepted_at, stored }))
}

/// Decides which items are within the quotas. Mostly all are, even if each stores something new; only otherwise it is
/// found out which do not.
async fn judge(
    transaction: &mut PgTransaction<'_>,
    items: &[Item<'_>],
    books: &mut Books,
    known: &Known,
) -> Result<Vec<Judged>, Error> {
    let limits = books.open_limits(items);
    for (place, limit) in &limits {
        books.prepare(transaction, *place, *limit, known).await?;
    }
    let fresh = vec![Standing::Fresh; items.len()];
    let judged = books.decide(items, &fresh);
    if judged.iter().all(Judged::is_passing) {
        return Ok(judged);
    }
    let standings = standings(transaction, items).await?;
    let judged = books.decide(items, &standings);
    let mut is_counted = false;
    for (place, limit) in &limits {
        let is_full = items
            .iter()
            .zip(&judged)
            .any(|(item, judged)| judged.is_for_lack_of_room() && books.place_of(item) == *place);
        let Some(account) = books.accounts.get(*place).filter(|_| is_full) else { continue };
        if !account.may_be_counted(books.now) {
            continue;
        }
        if *limit <= u64::from(AT_ONCE) {
            is_counted |= books.count(transaction, *place, *limit).await?;
        } else {
            known.want(account.tenant_id, *limit);
        }
    }
    Ok(if is_counted { books.decide(items, &standings) } else { judged })
}

impl Judged {
    const fn is_passing(&self) -> bool {
        match self {
            Self::Counted | Self::Free => true,
            Self::Stale | Self::Refused(_) | Self::Uncounted => false,
        }
    }

    /// Whether fewer open deliveries would let it in.
    const fn is_for_lack_of_room(&self) -> bool {
        match self {
            Self::Refused(excess) => matches!(excess.quota, Quota::OpenDeliveries) && !excess.is_for_good(),
            Self::Counted | Self::Free | Self::Stale | Self::Uncounted => false,
        }
    }
}

impl Batch {
    /// Nothing is stored, and each item is to be tried again.
    fn to_repeat(accepted_at: OffsetDateTime, items: usize) -> Self {
        Self { accepted_at, stored: vec![Stored::Stale; items] }
    }
}

impl Books {
    fn new(locked: Vec<(OffsetDateTime, Account)>) -> Self {
        let now = locked.first().map_or(OffsetDateTime::UNIX_EPOCH, |(now, _)| *now);
        let accounts = locked.into_iter().map(|(_, account)| account).collect();
        Self { now, accounts, is_changed: false, counted_first: Vec::new(), uncounted: BTreeSet::new() }
    }

    /// Beyond all places for an item that is not metered.
    fn place_of(&self, item: &Item<'_>) -> usize {
        let tenant_id = item.routing.tenant_id;
        let place = item
            .is_metered()
            .then(|| self.accounts.binary_search_by_key(&tenant_id, |account| account.tenant_id).ok());
        place.flatten().unwrap_or(usize::MAX)
    }

    /// The accounts whose open deliveries matter, and what they are held against.
    fn open_limits(&self, items: &[Item<'_>]) -> BTreeMap<usize, u64> {
        let mut limits = BTreeMap::new();
        for item in items {
            let Some(limit) = item.routing.limits.quotas.open_deliveries else { continue };
            let most = limits.entry(self.place_of(item)).or_insert(limit);
            *most = limit.max(*most);
        }
        limits
    }

    /// Sees to it that what a tenant has open is known: counted now where that is quick, and otherwise soon.
    async fn prepare(
        &mut self,
        transaction: &mut PgTransaction<'_>,
        place: usize,
        limit: u64,
        known: &Known,
    ) -> Result<(), Error> {
        let Some(account) = self.accounts.get(place) else { return Ok(()) };
        let (tenant_id, may_be_counted) = (account.tenant_id, account.may_be_counted(self.now));
        let is_first = !known.contains(tenant_id);
        // Where it was full when it was last counted, it counts as full until it is counted again.
        let is_uncounted = is_first || account.is_uncounted();
        let open = account.usage.open_at_most();
        if is_uncounted || open.is_none() && may_be_counted {
            if !known.is_wanted(tenant_id) && self.count(transaction, place, limit).await? {
                self.counted_first.extend(is_first.then_some(tenant_id));
            } else {
                known.want(tenant_id, limit);
                self.uncounted.extend(is_uncounted.then_some(place));
            }
        } else if open.is_some_and(|open| open > limit - limit / 4)
            && may_be_counted
            && limit > u64::from(AT_ONCE)
        {
            // Ahead of need, so that a number that was not lowered for a while refuses nobody.
            known.want(tenant_id, limit);
        }
        Ok(())
    }

    /// `false`: there are too many.
    async fn count(
        &mut self,
        transaction: &mut PgTransaction<'_>,
        place: usize,
        limit: u64,
    ) -> Result<bool, Error> {
        let Some(account) = self.accounts.get_mut(place) else { return Ok(false) };
        let is_counted = quota::count_at_once(transaction, account, limit).await?;
        self.is_changed |= is_counted;
        Ok(is_counted)
    }

    /// Decides in the order of the items. Changes no account: what is admitted may turn out to be stored already.
    fn decide(&self, items: &[Item<'_>], standings: &[Standing]) -> Vec<Judged> {
        let mut usages: Vec<Usage> = self.accounts.iter().map(|account| account.usage.clone()).collect();
        for place in &self.uncounted {
            if let Some(usage) = usages.get_mut(*place) {
                usage.set_open(None);
            }
        }
        let current = items.iter().zip(standings).filter(|(_, standing)| **standing != Standing::Stale);
        let candidates = current.map(|(item, standing)| Candidate {
            account: self.place_of(item),
            quotas: &item.routing.limits.quotas,
            demand: item.demand(),
            key: item
                .event
                .key
                .as_ref()
                .map(|(space, key)| (item.routing.application_id, space.number(), key)),
            is_repeat: *standing == Standing::Repeat,
        });
        let mut verdicts = decide(&mut usages, candidates, self.now).into_iter();
        let of = |(item, standing): (&Item<'_>, &Standing)| match standing {
            Standing::Stale => Judged::Stale,
            Standing::Fresh | Standing::Repeat => match verdicts.next() {
                Some(Verdict::Counted) => Judged::Counted,
                Some(Verdict::Free) => Judged::Free,
                Some(Verdict::Refused(excess)) => {
                    let refused = Judged::Refused(excess);
                    let is_uncounted = self.uncounted.contains(&self.place_of(item));
                    if is_uncounted && refused.is_for_lack_of_room() { Judged::Uncounted } else { refused }
                }
                None => Judged::Stale,
            },
        };
        items.iter().zip(standings).map(of).collect()
    }

    /// Adds what was stored.
    fn add(&mut self, items: &[Item<'_>], judged: &[Judged], stored: &[Stored]) {
        for ((item, judged), stored) in items.iter().zip(judged).zip(stored) {
            if matches!(judged, Judged::Counted) && *stored == Stored::New {
                let (place, now) = (self.place_of(item), self.now);
                if let Some(account) = self.accounts.get_mut(place) {
                    account.add(item.demand(), now);
                    self.is_changed = true;
                }
            }
        }
    }
}
