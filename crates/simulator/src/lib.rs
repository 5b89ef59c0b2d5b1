//! Scripted webhook receivers: for trying Postrider out, for its tests and its measurements.
//!
//! Invariant: what a receiver does is spelled in the path of its URL, so an endpoint needs no setting up here. Every
//! request is recorded before it is answered, so one that hangs or is cut off is seen too.
//!
//! | module | job |
//! |---|---|
//! | [`script`] | reads a path as a script and decides what to answer |
//! | [`record`] | the bounded memory of what arrived |
//! | [`trust`] | checks signatures under the secrets that were registered |
//! | `control` | the `/_/…` routes that show requests and take secrets |
//! | `connection` | serves one connection |

mod connection;
mod control;
pub mod record;
pub mod script;
pub mod trust;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use time::OffsetDateTime;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    task::JoinSet,
};

use crate::record::{Received, Requests};

/// Connections served at once; later ones wait to be accepted.
pub const MAX_CONNECTIONS: usize = 4_096;

/// How long [`Simulator::stop`] lets answers finish before it cuts the connections.
const STOP_GRACE: Duration = Duration::from_millis(500);
/// Pause after a failed `accept`, which is mostly a want of file descriptors that passes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where the simulator reads the time: the caller's clock.
pub type Now = Arc<dyn Fn() -> OffsetDateTime + Send + Sync>;

/// Why the simulator cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the simulator cannot listen on {address}; name another address")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("not a signing secret: {reason}")]
    Secret { reason: String },
}

/// How to start a simulator.
pub struct Settings {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    pub now: Now,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Settings").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// A running simulator. Dropping it cuts every connection; [`Simulator::stop`] lets answers finish.
#[derive(Debug)]
pub struct Simulator {
    address: SocketAddr,
    shared: Arc<Shared>,
    stopping: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) requests: Requests,
    pub(crate) trusted: trust::Secrets,
    pub(crate) flaps: script::Flaps,
    pub(crate) now: Now,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Simulator {
    /// Listens and answers until stopped or dropped.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let listen_error = |source| Error::Listen { address: settings.listen, source };
        let listener = TcpListener::bind(settings.listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let shared = Arc::new(Shared {
            requests: Requests::default(),
            trusted: trust::Secrets::default(),
            flaps: script::Flaps::default(),
            now: settings.now,
        });
        let (stopping, stop_seen) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared), stop_seen));
        Ok(Self { address, shared, stopping, tasks })
    }

    /// Where it listens, with the port it got.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a script, such as `url("/ok")`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Registers a `whsec_…` secret (or a `whpk_…` public key): later requests signed under it count as held.
    pub fn trust(&self, secret: &str) -> Result<(), Error> {
        self.shared.trusted.add(secret)
    }

    /// The newest requests it remembers, newest first; at most [`record::MAX_REQUESTS_KEPT`].
    pub fn requests(&self) -> Vec<Received> {
        self.shared.requests.newest(record::MAX_REQUESTS_KEPT)
    }

    /// How many requests have arrived since the start, forgotten ones included.
    pub fn total(&self) -> u64 {
        self.shared.requests.total()
    }

    /// Waits until it remembers a request that matches, and returns the newest such. Waits without end: the caller
    /// sets the limit.
    pub async fn wait_for(&self, matches: impl Fn(&Received) -> bool) -> Received {
        // Registered before the first look, so that a request between look and wait is not missed.
        let mut arrivals = self.shared.requests.arrivals();
        loop {
            arrivals.mark_unchanged();
            if let Some(found) = self.requests().into_iter().find(|received| matches(received)) {
                return found;
            }
            if arrivals.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Stops accepting, lets running answers finish for half a second, then cuts what is left.
    pub async fn stop(mut self) {
        self.stopping.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, mut stopping: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut stop_seen = stopping.clone();
    let accepting = async {
        loop {
            // A place before the connection: beyond the limit they wait in the kernel's queue.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let served = connection::serve(stream, Arc::clone(&shared), stopping.clone());
                    connections.spawn(async move {
                        served.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the simulator could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = stop_seen.wait_for(|stop| *stop) => {}
    }
    let _ = stopping.wait_for(|stop| *stop).await;
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_GRACE, finished).await.is_err() {
        connections.abort_all();
    }
}
