//! How many bytes of publishers' bodies this process holds at once.
//!
//! Invariant: what has arrived of a body is counted, part by part, until its publisher has the answer. What is merely
//! announced is not: it takes no memory, and idle connections could use up everybody's room with it. Where the publisher
//! hangs up first, a body is counted until nothing here needs it any more: it may still wait to be stored.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::Request;
use bytes::Bytes;
use postrider_core::problem::Code;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{body, problem::Problem};

/// Bytes of publishers' bodies held at once, over all connections (256 MiB).
pub const MAX_HELD_BYTES: usize = 256 * 1024 * 1024;

/// What one permit stands for.
const BYTES_PER_PERMIT: usize = 1024;

/// What is left of [`MAX_HELD_BYTES`].
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Semaphore>);

/// The share of one request. Shared by the request and everything that was cut from its body.
#[derive(Debug)]
pub(crate) struct Share(Mutex<Option<OwnedSemaphorePermit>>);

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
        Self(Arc::new(Semaphore::new(bytes / BYTES_PER_PERMIT)))
    }

    /// Reads a body of at most `limit` bytes.
    ///
    /// # Errors
    /// `503` as soon as more has arrived than there is room for; otherwise as [`body::read`].
    pub(crate) async fn read(&self, request: Request, limit: usize) -> Result<(Bytes, Arc<Share>), Problem> {
        // An empty body counts, too: it takes a place.
        let mut permit = self.take(1)?;
        let admit = |held: usize| {
            let missing = held.div_ceil(BYTES_PER_PERMIT).saturating_sub(permit.num_permits());
            if missing > 0 {
                permit.merge(self.take(missing)?);
            }
            Ok(())
        };
        let body = body::read_admitted(request, limit, admit).await?;
        Ok((body, Arc::new(Share(Mutex::new(Some(permit))))))
    }

    fn take(&self, permits: usize) -> Result<OwnedSemaphorePermit, Problem> {
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        Arc::clone(&self.0).try_acquire_many_owned(permits).map_err(|_full| exhausted())
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

    fn request(bytes: usize, announced: bool) -> Request {
        let request = Request::builder();
        let request = if announced { request.header(header::CONTENT_LENGTH, bytes) } else { request };
        request.body(Body::from(vec![b'1'; bytes])).expect("request")
    }

    #[tokio::test]
    async fn a_body_is_counted_while_it_is_held_and_refused_where_there_is_no_room() {
        let budget = Budget::of(10 * KIB);
        let left = || budget.0.available_permits();
        let (first, share) = budget.read(request(3 * KIB + 1, true), 8 * KIB).await.expect("room");
        assert_eq!(left(), 6);
        let refused = budget.read(request(6 * KIB + 1, false), 8 * KIB).await.expect_err("no room");
        assert_eq!((refused.code(), left()), (Code::Overloaded, 6));
        let (_, other) = budget.read(request(1, false), 8 * KIB).await.expect("room");
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
        let left = || budget.0.available_permits();
        let mut idle = Box::pin(budget.read(unfinished(8 * KIB, &[]), 8 * KIB));
        let mut slow = Box::pin(budget.read(unfinished(8 * KIB, &[KIB, KIB, 1]), 8 * KIB));
        assert!(futures::poll!(&mut idle).is_pending());
        assert!(futures::poll!(&mut slow).is_pending());
        assert_eq!(left(), 6);
        // Refused in its middle, long before it has arrived.
        let refused = budget.read(unfinished(12 * KIB, &[4 * KIB, 4 * KIB]), 12 * KIB).await;
        assert_eq!((refused.expect_err("no room").code(), left()), (Code::Overloaded, 6));
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
            let refused = budget.read(request, limit).await.expect_err("refused");
            assert_eq!((refused.code(), budget.0.available_permits()), (expected, 4));
        }
    }
}
