//! Wake-ups between processes. They say "look", carry no truth, and may be lost: every listener also polls.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    lanes::{self, Lane},
    wake,
};
use sqlx::{PgConnection, postgres::PgConnectOptions};
use tokio::sync::Notify;

use crate::{clock::Clock, supervisor::Shutdown};

/// Least time between two wake-ups: a burst of commits makes one.
const COALESCE: Duration = Duration::from_millis(20);

/// Asks for a wake-up of all workers; cheap, and never waits.
#[derive(Debug, Clone, Default)]
pub struct Notifier(Arc<Notify>);

impl Notifier {
    pub fn wake(&self) {
        self.0.notify_one();
    }

    /// Sends the wake-ups that were asked for, on a connection of its own, until the drain. One that cannot be sent is
    /// dropped: the poll of the others finds the work.
    pub async fn run(
        self,
        options: PgConnectOptions,
        clock: Arc<dyn Clock>,
        shutdown: Shutdown,
    ) -> Result<(), std::convert::Infallible> {
        let mut connection = None;
        loop {
            tokio::select! {
                () = self.0.notified() => {}
                () = shutdown.draining() => return Ok(()),
            }
            if let Err(error) = send(&options, &mut connection).await {
                tracing::debug!(%error, "a wake-up was not sent");
                connection = None;
            }
            clock.sleep(COALESCE).await;
        }
    }
}

async fn send(options: &PgConnectOptions, connection: &mut Option<PgConnection>) -> Result<(), sqlx::Error> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(lanes::connect(options, Lane::Background).await?),
    };
    wake::notify(open).await
}
