//! How many bytes of publishers' bodies this process holds at once, and how tenants share them: by what is free, as
//! applications share the places of the queue ([`super::places`]). Alone a tenant gets half of all.
//!
//! Invariant: what has arrived of a body is counted, part by part, until its publisher has the answer. What is merely
//! announced is not: it takes no memory, and idle connections could use up everybody's room with it. Where the publisher
//! hangs up first, a body is counted until nothing here needs it any more: it may still wait to be stored.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::extract::Request;
use bytes::Bytes;
use postrider_core::{id::TenantId, problem::Code};

use crate::{body, problem::Problem};

/// Bytes of publishers' bodies held at once, over all connections (256 MiB).
pub const MAX_HELD_BYTES: usize = 256 * 1024 * 1024;

/// What is counted: an empty body counts, too, since it takes a place.
const UNIT_BYTES: usize = 1024;

/// What is left of [`MAX_HELD_BYTES`], and who holds how much of the rest.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Mutex<Book>>);

/// In units.
#[derive(Debug)]
struct Book {
    free: usize,
    /// Of the tenants that hold something.
    held: HashMap<TenantId, usize>,
}

/// Units that a tenant holds, until this is dropped.
#[derive(Debug)]
struct Holding {
    budget: Budget,
    tenant_id: TenantId,
    units: usize,
}

/// The share of one request. Shared by the request and everything that was cut from its body.
#[derive(Debug)]
pub(crate) struct Share(Mutex<Option<Holding>>);

/// Bytes that keep their share of the budget.
struct Counted {
    bytes: Bytes,
    _share: Arc<Share>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::of(MAX_HELD_BYTES)
    }
}

impl Budget {
    fn of(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(Book { free: bytes / UNIT_BYTES, held: HashMap::new() })))
    }

    /// Reads a tenant's body of at most `limit` bytes.
    ///
    /// # Errors
    /// `503` as soon as more has arrived than there is room for; otherwise as [`body::read`].
    pub(crate) async fn read(
        &self,
        tenant_id: TenantId,
        request: Request,
        limit: usize,
    ) -> Result<(Bytes, Arc<Share>), Problem> {
        let mut holding = Holding { budget: self.clone(), tenant_id, units: 0 };
        holding.grow_to(1)?;
        let admit = |held: usize| holding.grow_to(held.div_ceil(UNIT_BYTES));
        let body = body::read_admitted(request, limit, admit).await?;
        Ok((body, Arc::new(Share(Mutex::new(Some(holding))))))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Whether a tenant may have so many more: not where it would hold more than was free, so that whoever comes with
    /// little finds room.
    fn try_take(&mut self, tenant_id: TenantId, units: usize) -> bool {
        let held = self.held.entry(tenant_id).or_default();
        let may_take = *held + units <= self.free;
        if may_take {
            *held += units;
            self.free -= units;
        } else if *held == 0 {
            self.held.remove(&tenant_id);
        }
        may_take
    }

    fn give_back(&mut self, tenant_id: TenantId, units: usize) {
        self.free += units;
        if let Some(held) = self.held.get_mut(&tenant_id) {
            *held = held.saturating_sub(units);
            if *held == 0 {
                self.held.remove(&tenant_id);
            }
        }
    }
}

impl Holding {
    fn grow_to(&mut self, units: usize) -> Result<(), Problem> {
        let missing = units.saturating_sub(self.units);
        // What it has it keeps, however little is left by now.
        if missing > 0 && !self.budget.book().try_take(self.tenant_id, missing) {
            return Err(exhausted());
        }
        self.units += missing;
        Ok(())
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.budget.book().give_back(self.tenant_id, mem::take(&mut self.units));
    }
}

impl Share {
    /// A share of nothing.
    #[cfg(test)]
    pub(crate) fn none() -> Arc<Self> {
        Arc::new(Self(Mutex::new(None)))
    }

    /// These bytes, which hold the share until the last copy of them is gone or [`Self::give_back`] is called.
    pub(crate) fn count(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Counted { bytes, _share: Arc::clone(self) })
    }

    /// The publisher has its answer: what a delivery still needs of the body is bounded by the deliveries in flight.
    pub(crate) fn give_back(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn exhausted() -> Problem {
    Problem::new(
        Code::Overloaded,
        "Too many bytes are waiting to be stored. Nothing was stored; send it again shortly.",
    )
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::{StreamExt as _, stream};
    use http::header;

    use super::*;

    const KIB: usize = 1024;
    const TENANT: TenantId = TenantId::from_uuid(uuid::Uuid::from_u128(1));
    const OTHER: TenantId = TenantId::from_uuid(uuid::Uuid::from_u128(2));

    fn request(bytes: usize, announced: bool) -> Request {
        let request = Request::builder();
        let request = if announced { request.header(header::CONTENT_LENGTH, bytes) } else { request };
        request.body(Body::from(vec![b'1'; bytes])).expect("request")
    }

    #[tokio::test]
    async fn a_body_is_counted_while_it_is_held_and_refused_where_there_is_no_room() {
        let budget = Budget::of(10 * KIB);
        let left = || budget.book().free;
        let (first, share) = budget.read(TENANT, request(3 * KIB + 1, true), 8 * KIB).await.expect("room");
        assert_eq!(left(), 6);
        let refused = budget.read(TENANT, request(6 * KIB + 1, false), 8 * KIB).await.expect_err("no room");
        assert_eq!((refused.code(), left()), (Code::Overloaded, 6));
        let (_, other) = budget.read(TENANT, request(1, false), 8 * KIB).await.expect("room");
        assert_eq!(left(), 5, "only what has arrived is counted");
        other.give_back();
        assert_eq!(left(), 6);

        // The publisher hangs up while an event still waits to be stored.
        let event = share.count(first.slice(..5));
        assert_eq!(event, "11111");
        drop((first, share));
        assert_eq!(left(), 6);
        drop(event);
        assert_eq!(left(), 10);
    }

    /// A body that announces so many bytes and sends these parts only.
    fn unfinished(announced: usize, parts: &[usize]) -> Request {
        let parts: Vec<_> = parts.iter().map(|bytes| Ok::<_, std::io::Error>(vec![b'1'; *bytes])).collect();
        let body = Body::from_stream(stream::iter(parts).chain(stream::pending()));
        Request::builder().header(header::CONTENT_LENGTH, announced).body(body).expect("request")
    }

    #[tokio::test]
    async fn what_is_announced_takes_no_room_and_what_arrives_does() {
        let budget = Budget::of(10 * KIB);
        let left = || budget.book().free;
        let mut idle = Box::pin(budget.read(TENANT, unfinished(8 * KIB, &[]), 8 * KIB));
        let mut slow = Box::pin(budget.read(TENANT, unfinished(8 * KIB, &[KIB, KIB, 1]), 8 * KIB));
        assert!(futures::poll!(&mut idle).is_pending());
        assert!(futures::poll!(&mut slow).is_pending());
        assert_eq!(left(), 5, "with the room that is kept for its next part");
        // Refused in its middle, long before it has arrived.
        let refused = budget.read(OTHER, unfinished(12 * KIB, &[4 * KIB, 4 * KIB]), 12 * KIB).await;
        assert_eq!((refused.expect_err("no room").code(), left()), (Code::Overloaded, 5));
        drop((idle, slow));
        assert_eq!(left(), 10);
    }

    #[tokio::test]
    async fn a_body_that_is_refused_or_too_long_leaves_nothing_behind() {
        let budget = Budget::of(4 * KIB);
        for (request, limit, expected) in [
            (request(2 * KIB, true), KIB, Code::BodyTooLarge),
            (request(2 * KIB, false), KIB, Code::BodyTooLarge),
            (request(5 * KIB, true), 8 * KIB, Code::Overloaded),
        ] {
            let refused = budget.read(TENANT, request, limit).await.expect_err("refused");
            assert_eq!((refused.code(), budget.book().free), (expected, 4));
        }
    }

    #[tokio::test]
    async fn no_tenant_can_take_what_the_others_need() {
        const SMALL: usize = KIB;
        let budget = Budget::of(64 * KIB);
        let mut taken = Vec::new();
        for tenant in 1..=6 {
            let tenant_id = TenantId::from_uuid(uuid::Uuid::from_u128(tenant));
            let before = taken.len();
            while let Ok(body) = budget.read(tenant_id, request(SMALL, true), SMALL).await {
                taken.push(body);
            }
            // Each leaves as much as it holds, and the next as much of that.
            assert_eq!(taken.len() - before, 64 >> tenant, "tenant {tenant}");
        }
        taken.clear();
        assert_eq!(budget.book().free, 64);
        assert!(budget.book().held.is_empty());
    }

    #[tokio::test]
    async fn what_needs_no_more_room_than_it_has_is_read_though_others_took_the_rest() {
        let budget = Budget::of(3 * KIB);
        let tenant = |number| TenantId::from_uuid(uuid::Uuid::from_u128(number));
        let (send, arrives) = futures::channel::oneshot::channel::<Vec<u8>>();
        let late = Request::new(Body::from_stream(stream::once(arrives)));
        let mut late = Box::pin(budget.read(tenant(1), late, KIB));
        assert!(futures::poll!(&mut late).is_pending());
        let _second = budget.read(tenant(2), request(KIB, true), KIB).await.expect("room");
        let _third = budget.read(tenant(3), request(KIB, true), KIB).await.expect("room");
        assert_eq!(budget.book().free, 0);
        send.send(vec![b'1'; KIB]).expect("it is awaited");
        assert_eq!(late.await.expect("its room").0.len(), KIB);
    }
}
