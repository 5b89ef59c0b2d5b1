//! The one task that talks to Redis. Whatever arrives while a call is under way is the next one: no timer, so that an idle
//! process waits for nothing and a busy one asks for many at once.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use postrider_core::limiter::Monotonic;
use tokio::{
    sync::mpsc,
    task::yield_now,
    time::{sleep, timeout},
};

use super::{
    Error, Settings,
    batch::{Call, Item, group},
    connection::{Connection, Connector},
};

/// Items in one pipeline.
const MAX_BATCH: usize = 1_024;
/// Turns that the lane gives the scheduler before it closes a batch: those whom the last one woke are about to ask.
const TURNS_BEFORE_CLOSING: usize = 2;
/// Leases whose return is remembered while Redis is away. Later ones were not its leases, or end by themselves.
const MAX_OWED: usize = 16_384;
/// Without anything to ask, Redis is asked for a sign of life, so that its loss is known before it matters.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Between two attempts to connect: doubled from the first to the last, less up to a half by chance, so that processes
/// that lost Redis together do not come back together.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// After a connection that held for so long the pauses begin anew.
const STEADY: Duration = Duration::from_secs(5);

/// Talks to Redis until nobody needs it any more.
pub struct Lane {
    link: Link,
    items: mpsc::Receiver<Item>,
    /// Leases to be given back once Redis is there.
    owed: Vec<Item>,
    opened: Option<Connection>,
}

/// The way to Redis, and whether it leads there.
struct Link {
    connector: Connector,
    monotonic: Arc<Monotonic>,
    is_up: Arc<AtomicBool>,
    pause: Duration,
    /// Why it is away, as it was said last; `None`: it was there for a while since.
    told: Option<String>,
}

enum End {
    /// Nobody needs limits any more.
    Closed,
    Lost(Error),
}

impl Lane {
    pub(super) async fn open(
        settings: Settings,
        items: mpsc::Receiver<Item>,
        is_up: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let Settings { address, roots, monotonic } = settings;
        let connector = Connector::new(address, roots)?;
        let mut link = Link { connector, monotonic, is_up, pause: FIRST_PAUSE, told: None };
        let opened = link.try_open().await;
        Ok(Self { link, items, owed: Vec::new(), opened })
    }

    /// Ends when nobody holds the limits any more, and everything was given back that can be.
    ///
    /// # Errors
    /// Never: without Redis it goes on.
    pub async fn run(mut self) -> Result<(), Infallible> {
        while let Some(connection) = self.connection().await {
            let since = (self.link.monotonic)();
            match self.serve(connection).await {
                End::Closed => return Ok(()),
                End::Lost(error) => {
                    if (self.link.monotonic)().saturating_sub(since) >= STEADY {
                        (self.link.pause, self.link.told) = (FIRST_PAUSE, None);
                    }
                    self.link.lost(&error);
                }
            }
        }
        Ok(())
    }

    /// `None`: nobody needs limits any more.
    async fn connection(&mut self) -> Option<Connection> {
        if let Some(opened) = self.opened.take() {
            return Some(opened);
        }
        tokio::select! {
            connection = self.link.reopen() => Some(connection),
            () = turn_away(&mut self.items, &mut self.owed) => None,
        }
    }

    async fn serve(&mut self, mut connection: Connection) -> End {
        loop {
            let mut batch = std::mem::take(&mut self.owed);
            if batch.is_empty() {
                let received = tokio::select! {
                    () = connection.closed() => return End::Lost(Error::Closed),
                    received = timeout(PROBE_INTERVAL, self.items.recv_many(&mut batch, MAX_BATCH)) => received,
                };
                let is_alive = match received {
                    Ok(0) => return End::Closed,
                    Ok(_) => Ok(()),
                    Err(_) => connection.probe().await,
                };
                if let Err(error) = is_alive {
                    return End::Lost(error);
                }
            }
            self.fill(&mut batch).await;
            if let Err(error) = self.exchange(&mut connection, batch).await {
                return End::Lost(error);
            }
        }
    }

    /// Takes what else is there.
    async fn fill(&mut self, batch: &mut Vec<Item>) {
        for _ in 0..TURNS_BEFORE_CLOSING {
            yield_now().await;
            while batch.len() < MAX_BATCH {
                let Ok(item) = self.items.try_recv() else { break };
                batch.push(item);
            }
        }
    }

    /// One call, and everybody's answer. What was to be given back is owed again if it fails.
    async fn exchange(&mut self, connection: &mut Connection, batch: Vec<Item>) -> Result<(), Error> {
        let mut calls = group(batch).into_iter().peekable();
        while calls.peek().is_some() {
            let part: Vec<_> = calls.by_ref().take(MAX_BATCH).collect();
            match connection.call(&part).await {
                Ok(answers) => {
                    let mut outcome = Ok(());
                    for (call, answer) in part.into_iter().zip(answers) {
                        outcome = outcome.and(call.answer(&answer));
                    }
                    if outcome.is_err() {
                        self.owe(calls);
                        return outcome;
                    }
                }
                Err(error) => {
                    self.owe(part.into_iter().chain(calls));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn owe(&mut self, unheard: impl Iterator<Item = Call>) {
        self.owed.extend(unheard.flat_map(Call::into_leaves).take(MAX_OWED));
    }
}

impl Link {
    /// `None`: not for now.
    async fn try_open(&mut self) -> Option<Connection> {
        match self.connector.connect().await {
            Ok(connection) => {
                self.is_up.store(true, Ordering::Relaxed);
                metrics::gauge!("postrider_shared_limits").set(1.0);
                tracing::info!("limits are shared through Redis");
                Some(connection)
            }
            Err(error) => {
                self.lost(&error);
                None
            }
        }
    }

    /// Tries until it succeeds.
    async fn reopen(&mut self) -> Connection {
        loop {
            sleep(jittered(self.pause)).await;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            if let Some(connection) = self.try_open().await {
                return connection;
            }
        }
    }

    fn lost(&mut self, error: &Error) {
        self.is_up.store(false, Ordering::Relaxed);
        metrics::gauge!("postrider_shared_limits").set(0.0);
        let cause = error.to_string();
        if self.told.as_ref() != Some(&cause) {
            self.told = Some(cause);
            tracing::warn!(
                %error,
                "Redis cannot be used: until it can, each process holds its limits alone"
            );
        }
    }
}

/// While Redis is away: whoever asks finds its own answer, and leases that are given back are remembered. Completes when
/// nobody needs limits any more.
async fn turn_away(items: &mut mpsc::Receiver<Item>, owed: &mut Vec<Item>) {
    while let Some(item) = items.recv().await {
        match item {
            Item::Leave { .. } if owed.len() < MAX_OWED => owed.push(item),
            Item::Leave { .. } | Item::Enter { .. } | Item::Take { .. } => {}
        }
    }
}

/// Between a half of a pause and all of it.
fn jittered(pause: Duration) -> Duration {
    let chance = getrandom::u32().map_or(0.5, |bits| f64::from(bits) / f64::from(u32::MAX));
    pause.mul_f64(1.0 - chance / 2.0)
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Lane").field("owed", &self.owed.len()).finish_non_exhaustive()
    }
}
