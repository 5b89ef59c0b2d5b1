//! Connections of the hot path: few, apart from the pool that serves queries, each with its own bounds and planner
//! settings. They need a session of their own, so they go to PostgreSQL directly and never through a pooler.

use std::{io, time::Duration};

use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};

use crate::error::Error;

/// Longest wait for a lock.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// The same for a batch of many publishers, most of whom wait for somebody else's lock: editors hold theirs for
/// milliseconds.
const INGEST_LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest statement. A lease of a batch whose commit was not answered is judged only after this time.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);

/// The same for take, settle and maintenance: what they lock is locked by others for moments, or not at all.
const WORK_LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// The same for upkeep, which can wait for another day: less than PostgreSQL's `deadlock_timeout` (a second), after which
/// it would interrupt an autovacuum that is in the way.
const UPKEEP_LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest pause within a transaction: a process that stops in the middle of one gives back what it has locked.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for an answer of any kind, seen from here.
const ANSWER_TIMEOUT: Duration = STATEMENT_TIMEOUT.saturating_add(Duration::from_secs(5));

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Ingest. All join methods stay on: without them joining deliveries to their events turns quadratic.
    Ingest,
    /// The same for events of tenants that have quotas.
    IngestMetered,
    /// The same for the events that waited for a lock there.
    IngestAside,
    /// Take, settle and maintenance. Every row is found by one look into an index and changed where it lies (`ctid`): on a
    /// table that is fresh or bloated, or was vacuumed while it was empty, the planner would otherwise be lured into reading
    /// all of it. What changed between the snapshot and the lock is passed over until the next look.
    Work,
    /// Publishing the outbox. Commits are not waited for: what is lost of them is published again.
    Outbox,
    /// Passes over all open deliveries, heartbeats and wake-ups.
    Background,
    /// VACUUM and rebuilding indexes: one process that does so, and quietly.
    Upkeep,
}

/// A lane's connection: opened when it is needed, and again after it was lost.
#[derive(Debug)]
pub struct Line {
    options: PgConnectOptions,
    lane: Lane,
    open: Option<PgConnection>,
    /// The database was away at the last try: that is told once, however many tries there are.
    is_away: bool,
}

impl Line {
    pub const fn new(options: PgConnectOptions, lane: Lane) -> Self {
        Self { options, lane, open: None, is_away: false }
    }

    /// The connection, opened if there is none.
    pub async fn connection(&mut self) -> Result<&mut PgConnection, Error> {
        if let Some(ref mut open) = self.open {
            Ok(open)
        } else {
            // Apart, since it is rare: whoever uses a line would carry room for it otherwise.
            let connecting = Box::pin(async { connect(&self.options, self.lane).await.map_err(Error::from) });
            match bounded(connecting).await {
                Ok(open) => Ok(self.open.insert(open)),
                Err(error) => {
                    self.note_lost(&error);
                    Err(error)
                }
            }
        }
    }

    /// Asks an open connection whether it lives, and gives it up if not.
    pub async fn prove(&mut self) {
        if let Some(open) = &mut self.open {
            let answer = bounded(async { open.ping().await.map_err(Error::from) }).await;
            // The next use opens another one, or says why it cannot.
            let _ = self.checked(answer);
        }
    }

    /// Gives the connection up if the result says that it was lost; passes the result on.
    pub fn checked<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        match &result {
            Err(error) if error.is_lost() => self.note_lost(error),
            // A connection alone does not count: a standby takes it and then refuses the work.
            Ok(_) if self.is_away => {
                self.is_away = false;
                tracing::info!(lane = ?self.lane, "the database is back");
            }
            Ok(_) | Err(_) => {}
        }
        result
    }

    fn note_lost(&mut self, error: &Error) {
        self.open = None;
        if !self.is_away {
            self.is_away = true;
            tracing::warn!(lane = ?self.lane, error = error as &dyn std::error::Error, "the database is away");
        }
    }
}

/// Waits for the database, but not for ever: a machine that vanished without a word answers nothing, and the
/// server's own time limits end with it. What was sent may then have been done.
pub async fn bounded<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(ANSWER_TIMEOUT, work).await {
        Ok(result) => result,
        Err(_) => Err(Error::Unavailable(sqlx::Error::Io(io::ErrorKind::TimedOut.into()))),
    }
}

/// Opens a connection for one lane. Array statements keep one generic plan: planning them anew costs more than it gains.
pub async fn connect(options: &PgConnectOptions, lane: Lane) -> Result<PgConnection, sqlx::Error> {
    let lock_timeout = match lane {
        Lane::Ingest | Lane::IngestMetered => INGEST_LOCK_TIMEOUT,
        Lane::IngestAside | Lane::Background => LOCK_TIMEOUT,
        Lane::Work | Lane::Outbox => WORK_LOCK_TIMEOUT,
        Lane::Upkeep => UPKEEP_LOCK_TIMEOUT,
    };
    // Of these, only ingest waits for what another process holds across statements: what a tenant has used.
    let pause_timeout = match lane {
        Lane::Ingest | Lane::IngestMetered | Lane::IngestAside => PAUSE_TIMEOUT,
        Lane::Work | Lane::Outbox | Lane::Background | Lane::Upkeep => STATEMENT_TIMEOUT,
    };
    let mut settings = vec![
        ("lock_timeout", lock_timeout.as_millis().to_string()),
        ("statement_timeout", STATEMENT_TIMEOUT.as_millis().to_string()),
        ("idle_in_transaction_session_timeout", pause_timeout.as_millis().to_string()),
        ("jit", "off".to_owned()),
        // A statement after a lock must see what was committed while the lock was waited for, whatever the database's
        // own default is.
        ("default_transaction_isolation", "read committed".to_owned()),
    ];
    match lane {
        Lane::Ingest | Lane::IngestMetered | Lane::IngestAside => {
            settings.push(("plan_cache_mode", "force_generic_plan".to_owned()));
        }
        Lane::Work | Lane::Outbox => {
            settings.push(("plan_cache_mode", "force_generic_plan".to_owned()));
            for planner in ["enable_seqscan", "enable_hashjoin", "enable_mergejoin"] {
                settings.push((planner, "off".to_owned()));
            }
            if lane == Lane::Outbox {
                settings.push(("synchronous_commit", "off".to_owned()));
            }
        }
        Lane::Background => {}
        Lane::Upkeep => {
            settings.push(("max_parallel_maintenance_workers", "0".to_owned()));
            // That a VACUUM stepped back is no warning.
            settings.push(("client_min_messages", "error".to_owned()));
        }
    }
    PgConnection::connect_with(&options.clone().options(settings)).await
}
