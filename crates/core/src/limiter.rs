//! Limits that may hold over all processes together, and the port through which they are asked.
//!
//! Invariant: an answer always comes, and soon. Where those who share a limit cannot be reached, each process answers by
//! its own count: less evenly, and nothing is refused or lost for it.

mod in_process;

use std::{fmt, num::NonZeroU16, time::Duration};

use uuid::Uuid;

use crate::{
    bucket::{Level, Rate},
    id::{EndpointId, TenantId},
    port::Pending,
};

pub use in_process::{InProcess, Monotonic};

/// Longest life of a lease that nobody gives back.
pub const LONGEST_LEASE: Duration = Duration::from_secs(120);
/// How long to wait before asking again for a lease where all are used: nobody knows when one comes back.
pub const LEASE_WAIT: Duration = Duration::from_millis(20);

/// Limits on how much is sent to endpoints and how fast tenants publish.
pub trait Limiter: fmt::Debug + Send + Sync {
    /// Asked right before a request is sent: a lease and, where the endpoint has a rate, a token, or neither. Once granted,
    /// the same lease costs nothing more.
    fn enter(&self, entry: Entry) -> Pending<'_, Answer>;

    /// Gives a lease back, or the wish for one. Never waits.
    fn leave(&self, endpoint_id: EndpointId, lease_id: LeaseId);

    /// Takes so many tokens of a tenant at once, as [`Bucket::take`](crate::bucket::Bucket::take) does.
    fn take(&self, tenant_id: TenantId, rate: Rate, count: u32) -> Pending<'_, Taken>;

    /// How a tenant's bucket stands as far as this process knows, which asks nobody: never less than there is, unless the
    /// process had to count alone.
    fn look(&self, tenant_id: TenantId, rate: Rate) -> Taken;

    /// Whom the limits hold for now.
    fn reach(&self) -> Reach;
}

/// Who wants to send a request, and within which limits.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub endpoint_id: EndpointId,
    pub lease_id: LeaseId,
    pub max_in_flight: NonZeroU16,
    pub rate: Option<Rate>,
    /// The lease ends by itself after this time, [`LONGEST_LEASE`] at most: whoever held it has died.
    pub lifetime: Duration,
}

/// Names the right to have one request in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(Uuid);

impl LeaseId {
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl From<Uuid> for LeaseId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

/// What came of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Answer {
    Granted,
    /// Nothing was taken; it is worth asking again after this time.
    Wait(Duration),
}

/// What came of asking for tokens, and how the bucket stands now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Taken {
    pub answer: Answer,
    pub level: Level,
}

/// Whom limits hold for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All processes together.
    Shared,
    /// Each process counts alone.
    Process,
}
