//! The queue over RabbitMQ: what the outbox holds is published with confirms, and what arrives is handed to the engine.
//!
//! ```text
//! outbox ──publish──► postrider.ready ──consume──► engine claims the rows, sends, settles ──► acknowledged
//!    └──publish──► postrider.retry.* ──time is up──► postrider.ready
//!    └──publish──► postrider.dead, which people read
//! ```
//!
//! Invariant: nothing depends on the broker. What it loses, repeats or brings late is in the table; while it is away the
//! table is all there is, and this goes on trying to reach it for ever.

mod connect;
mod consume;
mod instruments;
mod publish;
mod reconcile;
mod topology;

use std::{
    fmt,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::StreamExt as _;
use lapin::Connection;
use postrider_core::{
    port::Pending,
    queue::{Arrival, Queue},
};
use postrider_store::lanes::{Lane, Line};
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{Mutex, Notify, mpsc};
use tokio_util::sync::CancellationToken;

pub use connect::{Address, BadAddress};

use connect::Backoff;
pub use instruments::register as register_metrics;

/// Runs until the drain.
pub type Task = Pending<'static, Result<(), std::convert::Infallible>>;

/// What a process needs to use the broker.
#[derive(Debug, Clone)]
pub struct Settings {
    pub address: Address,
    /// For connections of its own to PostgreSQL: never through a pooler.
    pub options: PgConnectOptions,
    /// How many requests the process has in flight; `None` where it sends nothing.
    pub sends_at_once: Option<u16>,
    /// Cancelled when the process is to end.
    pub draining: CancellationToken,
}

/// The broker as this process sees it.
pub struct RabbitMq {
    settings: Settings,
    publishing: AtomicBool,
    consuming: AtomicBool,
    announced: Notify,
    /// Told that there are messages which only a newer program knows.
    newer: Once,
    arrived: mpsc::UnboundedSender<Arrival>,
    /// Bounded by the prefetch: the broker sends no more before some are acknowledged, and what is left of a connection that
    /// has ended is dropped.
    arrivals: Mutex<mpsc::UnboundedReceiver<Arrival>>,
}

impl RabbitMq {
    pub fn new(settings: Settings) -> Arc<Self> {
        let (arrived, arrivals) = mpsc::unbounded_channel();
        Arc::new(Self {
            settings,
            publishing: AtomicBool::new(false),
            consuming: AtomicBool::new(false),
            announced: Notify::new(),
            newer: Once::new(),
            arrived,
            arrivals: Mutex::new(arrivals),
        })
    }

    /// Publishes what the outbox holds, until the drain.
    pub async fn publish(self: Arc<Self>) -> Result<(), std::convert::Infallible> {
        publish::run(&self).await;
        Ok(())
    }

    /// Receives, until the drain has begun and everything in hand is acknowledged.
    pub async fn consume(self: Arc<Self>) -> Result<(), std::convert::Infallible> {
        consume::run(&self).await;
        Ok(())
    }

    /// Announces anew what the broker has lost, until the drain.
    pub async fn reconcile(self: Arc<Self>) -> Result<(), std::convert::Infallible> {
        reconcile::run(&self).await;
        Ok(())
    }

    /// What a process has to run, each under its name.
    pub fn tasks(self: &Arc<Self>) -> Vec<(&'static str, Task)> {
        let mut tasks: Vec<(_, Task)> = vec![
            ("publish", Box::pin(Arc::clone(self).publish())),
            ("reconcile", Box::pin(Arc::clone(self).reconcile())),
        ];
        if self.settings.sends_at_once.is_some() {
            tasks.push(("consume", Box::pin(Arc::clone(self).consume())));
        }
        tasks
    }

    /// A connection to a broker whose queues are as they should be.
    async fn connect(&self, purpose: &str) -> Result<Connection, Error> {
        let connection = self.settings.address.connect(purpose).await?;
        let mut line = Line::new(self.settings.options.clone(), Lane::Background);
        topology::prepare(&connection, &mut line).await?;
        Ok(connection)
    }

    fn set_publishing(&self, is_publishing: bool) {
        self.publishing.store(is_publishing, Ordering::Relaxed);
        self.show();
    }

    fn set_consuming(&self, is_consuming: bool) {
        self.consuming.store(is_consuming, Ordering::Relaxed);
        self.show();
    }

    /// Drops what has arrived over a connection that has ended, and that nobody has seen: the broker brings it again.
    fn drop_unseen(&self) {
        // Whoever has the lock waits for an arrival, or takes one after the other: then there is next to nothing.
        if let Ok(mut arrivals) = self.arrivals.try_lock() {
            while arrivals.try_recv().is_ok() {}
        }
    }

    fn show(&self) {
        metrics::gauge!("postrider_broker_up").set(if self.is_up() { 1.0 } else { 0.0 });
    }

    fn is_publishing(&self) -> bool {
        self.publishing.load(Ordering::Relaxed)
    }

    fn is_draining(&self) -> bool {
        self.settings.draining.is_cancelled()
    }

    /// Completes after this time; `false`: the drain began before.
    async fn pause(&self, time: std::time::Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(time) => true,
            () = self.settings.draining.cancelled() => false,
        }
    }
}

impl Queue for RabbitMq {
    fn arrival(&self) -> Pending<'_, Arrival> {
        Box::pin(async {
            match self.arrivals.lock().await.recv().await {
                Some(arrival) => arrival,
                // This process holds the other end, so that never happens.
                None => std::future::pending().await,
            }
        })
    }

    fn is_up(&self) -> bool {
        let consumes = self.settings.sends_at_once.is_none() || self.consuming.load(Ordering::Relaxed);
        consumes && self.is_publishing()
    }

    fn announced(&self) {
        // Those who rest, and one that looks just now and will rest.
        self.announced.notify_waiters();
        self.announced.notify_one();
    }
}

impl fmt::Debug for RabbitMq {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RabbitMq").field("is_up", &self.is_up()).finish_non_exhaustive()
    }
}

/// Why the broker cannot be used at this moment.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the broker cannot be used: {0}")]
    Broker(#[from] lapin::Error),
    #[error("the database cannot be used: {0}")]
    Database(#[from] postrider_store::Error),
    #[error(
        "queue {queue} was declared with other settings: delete it when it is empty, or use another virtual host ({reason})"
    )]
    Unlike { queue: String, reason: String },
    #[error("the broker returned a message: queue {0} is missing")]
    Unroutable(String),
    #[error("the broker refused a message for queue {0}: it may be full")]
    Refused(String),
    #[error("the broker does not answer")]
    Silent,
    #[error("the broker has cancelled the consumer")]
    Cancelled,
}

/// Waits for the broker, but not for ever: a peer that vanished without a word answers nothing.
async fn bounded<T>(work: impl Future<Output = lapin::Result<T>>) -> Result<T, Error> {
    match tokio::time::timeout(connect::ANSWER_TIMEOUT, work).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Error::Silent),
    }
}

/// The tries to keep a connection: less and less often while it fails. An outage is told once, and once more when its cause
/// is another one; and so is its end.
#[derive(Debug)]
struct Tries {
    what: &'static str,
    /// The outage that goes on, by the cause that was told last.
    told: Option<String>,
    backoff: Backoff,
}

impl Tries {
    fn of(what: &'static str) -> Self {
        Self { what, told: None, backoff: Backoff::default() }
    }

    fn succeeded(&mut self) {
        if self.told.take().is_some() {
            tracing::info!(what = self.what, "the broker is back");
        }
        self.backoff.reset();
    }

    /// Waits until it is time for the next.
    async fn failed(&mut self, rabbit: &RabbitMq, error: &Error) {
        self.tell(error);
        rabbit.pause(self.backoff.next()).await;
    }

    fn tell(&mut self, error: &Error) {
        let (is_databases, cause) = (matches!(error, Error::Database(_)), error.to_string());
        let (what, error) = (self.what, error as &(dyn std::error::Error + 'static));
        if is_databases {
            // Whoever lost a database tells of that.
            tracing::debug!(what, error, "the broker is not asked: the database is away");
        } else if self.told.as_ref() == Some(&cause) {
            tracing::debug!(what, error, "the broker is still away");
        } else {
            self.told = Some(cause);
            tracing::warn!(what, error, "the broker is away; deliveries go on through the table");
        }
    }
}

/// Completes when the connection breaks; tells `when_blocked` each time that the broker stops or goes on taking messages.
async fn watch(connection: &Connection, when_blocked: impl Fn(bool)) -> Error {
    let mut events = std::pin::pin!(connection.events_listener());
    while let Some(event) = events.next().await {
        match event {
            lapin::Event::ConnectionBlocked(reason) => {
                tracing::warn!(reason, "the broker takes no messages; deliveries go on through the table");
                when_blocked(true);
            }
            lapin::Event::ConnectionUnblocked => {
                tracing::info!("the broker takes messages again");
                when_blocked(false);
            }
            lapin::Event::Error(error) => return error.into(),
            _ => {}
        }
    }
    Error::Silent
}
