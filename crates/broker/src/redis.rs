//! Limits that all processes share, in Redis: [`core::limiter`](postrider_core::limiter).
//!
//! ```text
//! enter, leave, take ──► Redis ──items──► Lane ──one call for each endpoint or tenant, all in one pipeline──► script
//!                          └── away, slow or full: the limits of this process
//! ```
//!
//! Invariant: Redis decides nothing but how fast. Without it each process holds the limits alone, at once and without a
//! refusal, and says so. Nothing in it needs to be kept: every key expires.

mod address;
mod batch;
mod connection;
mod instruments;
mod lane;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use postrider_core::{
    bucket::Rate,
    id::{EndpointId, TenantId},
    limiter::{Answer, Entry, InProcess, LeaseId, Limiter, Monotonic, Reach, Taken},
    port::Pending,
};
use tokio::sync::{mpsc, oneshot};

pub use address::{Address, Unusable};
pub use connection::Error;
pub use lane::Lane;

use batch::{Item, Left};

/// Items that wait for the lane; beyond that a process counts alone, and a lease that is given back ends by itself.
const MAX_WAITING: usize = 65_536;

/// What it takes to share limits.
pub struct Settings {
    pub address: Address,
    /// Whose certificates are believed.
    pub roots: rustls::RootCertStore,
    /// For the limits of this process.
    pub monotonic: Arc<Monotonic>,
}

/// The limits, as this process asks for them.
pub struct Redis {
    items: mpsc::Sender<Item>,
    is_up: Arc<AtomicBool>,
    in_process: InProcess,
}

/// Connects, or finds out that it cannot for now. The lane has to run from then on; it ends when nobody holds the limits
/// any more, so that every lease is given back.
///
/// # Errors
/// Where it never could: TLS cannot be used.
pub async fn open(settings: Settings) -> Result<(Arc<Redis>, Lane), Error> {
    instruments::register();
    let (items, waiting) = mpsc::channel(MAX_WAITING);
    let is_up = Arc::<AtomicBool>::default();
    let in_process = InProcess::new(Arc::clone(&settings.monotonic));
    let lane = Lane::open(settings, waiting, Arc::clone(&is_up)).await?;
    Ok((Arc::new(Redis { items, is_up, in_process }), lane))
}

impl Redis {
    /// Whether the limits are shared at the moment.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// `None`: there is no answer, and this process has to find its own.
    async fn ask<T>(&self, item: impl FnOnce(oneshot::Sender<T>) -> Item) -> Option<T> {
        let answer = async {
            if !self.is_up() {
                return None;
            }
            let (reply, answer) = oneshot::channel();
            self.items.try_send(item(reply)).ok()?;
            answer.await.ok()
        };
        let answer = answer.await;
        if answer.is_none() {
            metrics::counter!("postrider_limits_in_process_total").increment(1);
        }
        answer
    }
}

impl Limiter for Redis {
    fn enter(&self, entry: Entry) -> Pending<'_, Answer> {
        Box::pin(async move {
            match self.ask(|reply| Item::Enter { entry, reply }).await {
                Some(answer) => answer,
                None => self.in_process.enter_now(&entry),
            }
        })
    }

    fn leave(&self, endpoint_id: EndpointId, lease_id: LeaseId) {
        self.in_process.leave(endpoint_id, lease_id);
        // Also while Redis is away: it may have the lease when it comes back.
        let _ = self.items.try_send(Item::Leave { endpoint_id, lease_id });
    }

    fn take(&self, tenant_id: TenantId, rate: Rate, count: u32) -> Pending<'_, Taken> {
        Box::pin(async move {
            match self.ask(|reply| Item::Take { tenant_id, rate, count, reply }).await {
                Some(Left { answer, tokens }) => {
                    let Taken { level, .. } = self.in_process.learn(tenant_id, rate, tokens);
                    Taken { answer, level }
                }
                None => self.in_process.take_now(tenant_id, rate, count),
            }
        })
    }

    fn look(&self, tenant_id: TenantId, rate: Rate) -> Taken {
        self.in_process.look(tenant_id, rate)
    }

    fn reach(&self) -> Reach {
        if self.is_up() { Reach::Shared } else { Reach::Process }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Redis").field("is_up", &self.is_up()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Settings").field("address", &self.address).finish_non_exhaustive()
    }
}
