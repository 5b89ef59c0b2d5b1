//! Carries one request to a receiver and brings back what it answered.
//!
//! Redirects, proxies, decompression, cookies and automatic retries are absent, not merely off. Every request passes
//! the guard: it goes to an address that [`postrider_core::address`] allowed, looked up at most a moment ago, whether
//! the connection is new or kept. Everything is bounded: looking up, connecting, the whole exchange, and the bytes that
//! are read. The status line decides: once the head of an answer is there, nothing in its body changes the outcome.
//!
//! | module | its part |
//! |---|---|
//! | `http` | one exchange from start to end |
//! | `guard` | names become allowed addresses |
//! | `connect`, `tls` | an address becomes a connection |
//! | `connection`, `socket` | a request becomes an answer |
//! | `pool` | connections wait to be used again |

mod connect;
mod connection;
mod guard;
mod http;
mod pool;
mod socket;
mod tls;

use std::{future::Future, sync::Arc, time::Duration};

use ::http::HeaderMap;
use bytes::Bytes;
use postrider_core::{
    destination::Destination,
    id::TenantId,
    method::Method,
    retry::{Answer, Failure, FailureKind, Outcome},
};
use zeroize::Zeroizing;

pub use connect::{Dial, SystemDial};
pub use guard::{Guard, Resolver, SystemResolver};
pub use http::{Http, Settings};
pub use tls::{Error, authorities, roots};

/// How Postrider names itself to receivers.
pub const PRODUCT: &str = concat!("Postrider/", env!("CARGO_PKG_VERSION"));

/// Sends requests. The engine knows no more of the network than this.
pub trait Transport: Send + Sync + 'static {
    /// Sends one request and waits for its outcome, no longer than `request.timeout`. Never fails: what goes wrong is
    /// an outcome too.
    fn send(&self, request: Outgoing) -> impl Future<Output = Exchange> + Send;

    /// Sends one request and reads its whole answer, for an answer that is itself what was asked for. `request.timeout` is
    /// for all of it; it goes over a connection of its own, and is never sent a second time.
    fn fetch(&self, request: Outgoing) -> impl Future<Output = Result<Fetched, Failure>> + Send {
        async move {
            let detail = format!("nothing is fetched from {} here", request.destination.origin());
            Err(Failure { kind: FailureKind::Unsendable, detail })
        }
    }

    /// Lets go of what is kept for the next request and has been kept too long. Sending does so by the way; this is for a
    /// process that has nothing to send, and is to be called every few seconds.
    fn tidy(&self) {}
}

/// A request about to be sent.
#[derive(Debug)]
pub struct Outgoing {
    /// For whom: a connection carries requests of one tenant only.
    pub tenant_id: TenantId,
    pub method: Method,
    pub destination: Arc<Destination>,
    /// What the caller has to say. `Host`, `User-Agent` and the length of the body are the transport's, and replace what
    /// stands here.
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Longest time from looking up the name to the head of the answer, whose status decides.
    pub timeout: Duration,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    pub outcome: Outcome,
    /// From the call to the outcome, waits for lookups and connections included.
    pub latency: Duration,
    /// A kept connection turned out to be closed before a byte of the answer came, and the request was sent again on a
    /// new one: the receiver may have seen it twice.
    pub reconnected: bool,
}

/// An answer with its body, which no `Debug` shows: it may be a secret.
pub struct Fetched {
    pub answer: Answer,
    pub body: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Fetched {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Fetched").field("answer", &self.answer).finish_non_exhaustive()
    }
}
