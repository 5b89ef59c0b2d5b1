//! Who asks: one or more clients of the same limits.

use std::{
    num::{NonZeroU16, NonZeroU32},
    sync::Arc,
    time::{Duration, Instant},
};

use postrider_broker::redis::{self, Settings};
use postrider_core::{
    bucket::Rate,
    id::{EndpointId, TenantId},
    limiter::{Entry, InProcess, LeaseId, Limiter, Monotonic},
};
use postrider_testkit::redis::Redis;
use rustls::RootCertStore;
use tokio::task::JoinSet;
use uuid::Uuid;

pub(crate) struct Parties {
    clients: Vec<Arc<dyn Limiter>>,
    _lanes: JoinSet<()>,
    _redis: Option<Redis>,
}

impl Parties {
    pub(crate) fn in_process() -> Self {
        let limits: Arc<dyn Limiter> = Arc::new(InProcess::new(clock()));
        Self { clients: vec![limits], _lanes: JoinSet::new(), _redis: None }
    }

    pub(crate) async fn in_redis(count: usize) -> Self {
        let server = Redis::fresh().await;
        let mut lanes = JoinSet::new();
        let mut clients: Vec<Arc<dyn Limiter>> = Vec::new();
        for _ in 0..count {
            clients.push(client(&server.url(), &mut lanes).await);
        }
        Self { clients, _lanes: lanes, _redis: Some(server) }
    }

    /// One of them, in turn.
    pub(crate) fn party(&self, turn: usize) -> Arc<dyn Limiter> {
        Arc::clone(&self.clients[turn % self.clients.len()])
    }

    pub(crate) fn first(&self) -> Arc<dyn Limiter> {
        self.party(0)
    }

    /// Another one, where there are two.
    pub(crate) fn other(&self) -> Arc<dyn Limiter> {
        self.party(1)
    }
}

/// A client of a server without TLS, and the task that it needs.
pub(crate) async fn client(url: &str, lanes: &mut JoinSet<()>) -> Arc<redis::Redis> {
    client_with(url, RootCertStore::empty(), clock(), lanes).await
}

pub(crate) async fn client_with(
    url: &str,
    roots: RootCertStore,
    monotonic: Arc<Monotonic>,
    lanes: &mut JoinSet<()>,
) -> Arc<redis::Redis> {
    let settings = Settings { address: url.parse().expect("a URL of Redis"), roots, monotonic };
    let (limits, lane) = redis::open(settings).await.expect("TLS can be used");
    lanes.spawn(async move {
        let Ok(()) = lane.run().await;
    });
    limits
}

/// Real time, from any beginning.
#[expect(clippy::disallowed_methods, reason = "what Redis does goes by real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn clock() -> Arc<Monotonic> {
    let start = now();
    Arc::new(move || start.elapsed())
}

pub(crate) fn rate(per_second: f64, burst: u32) -> Rate {
    Rate { per_second, burst: NonZeroU32::new(burst).expect("not zero") }
}

pub(crate) fn tenant() -> TenantId {
    TenantId::from_uuid(Uuid::now_v7())
}

pub(crate) fn lease() -> LeaseId {
    LeaseId::from(Uuid::now_v7())
}

/// A wish for a lease at an endpoint that nobody has asked for yet.
pub(crate) fn entry(max_in_flight: u16, rate: Option<Rate>) -> Entry {
    Entry {
        endpoint_id: EndpointId::from_uuid(Uuid::now_v7()),
        lease_id: lease(),
        max_in_flight: NonZeroU16::new(max_in_flight).expect("not zero"),
        rate,
        lifetime: Duration::from_secs(60),
    }
}

/// Another wish at the same endpoint.
pub(crate) fn again(entry: &Entry) -> Entry {
    Entry { lease_id: lease(), ..*entry }
}
