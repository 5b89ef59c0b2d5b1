//! Wake-ups between processes. They say "look", carry no truth, and may be lost: every listener also polls.

use std::{sync::Arc, time::Duration};

use postrider_store::{
    Error,
    lanes::{Lane, Line, bounded},
    wake,
};
use sqlx::postgres::PgConnectOptions;
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
        let mut line = Line::new(options, Lane::Background);
        loop {
            tokio::select! {
                () = self.0.notified() => {}
                () = shutdown.draining() => return Ok(()),
            }
            let sent = send(&mut line).await;
            if let Err(error) = line.checked(sent) {
                tracing::debug!(error = &error as &dyn std::error::Error, "a wake-up was not sent");
            }
            clock.sleep(COALESCE).await;
        }
    }
}

async fn send(line: &mut Line) -> Result<(), Error> {
    let open = line.connection().await?;
    bounded(async { Ok(wake::notify(open).await?) }).await
}
