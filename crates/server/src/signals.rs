//! Signals: the first asks the process to drain, the second to end at once.

use std::io;

use postrider_engine::supervisor::Shutdown;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the process. Registered when made, so that none is lost afterwards.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn register() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Passes signals on. Never completes: the process ends when its tasks have.
    pub(crate) async fn watch(mut self, shutdown: &Shutdown) -> std::convert::Infallible {
        self.next().await;
        tracing::info!("draining: finishing what is in hand; a second signal ends at once");
        shutdown.drain();
        self.next().await;
        tracing::warn!("second signal: ending at once; open leases are taken over when they expire");
        shutdown.abort();
        std::future::pending().await
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
