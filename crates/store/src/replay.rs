//! Replay: many dead letters are sent again, in two steps. A preview remembers exactly the letters that it saw; its
//! execution brings back those that are still as they were seen then.
//!
//! | module | what it does |
//! |---|---|
//! | [`preview`] | finds the letters, in one statement and so as of one moment |
//! | [`execute`], [`cancel`] | what a person decides |
//! | [`next`] | one endpoint's turn: a bounded batch, its progress in the same transaction |
//! | [`finish`], [`expire`], [`tidy`] | what ends without anybody, and what is removed then |
//!
//! Invariant: a letter is moved in the transaction that counts it, so that a process which dies between two batches, or
//! within one, loses and doubles nothing. Rows are locked in one order: a replay's own, those of its endpoints, then the
//! letters.

mod change;
mod over;
mod preview;
mod read;
mod step;

use std::{fmt, str::FromStr, time::Duration};

use postrider_core::id::ReplayId;
use time::OffsetDateTime;

pub use change::{cancel, execute};
pub use over::{Finished, expire, finish, running, tidy};
pub use preview::{Filter, NewReplay, preview};
pub use read::{get, list};
pub use step::{Advanced, COUNTED, Load, Portion, Step, Turn, due_tenants, next, postpone};

/// Most letters of one replay.
pub const MAX_LETTERS: u32 = 1_000_000;
/// Most replays of one tenant that are previewed or running.
pub const MAX_OPEN: u32 = 10;
/// Most replays of one tenant that are over while what their previews kept is still to be removed. Without it, whoever
/// previews and cancels would write faster than is removed.
pub const MAX_UNTIDY: u32 = 30;
/// How long a preview may wait for its execution.
pub const LIFETIME: Duration = Duration::from_secs(60 * 60);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no such replay in this tenant")]
    NotFound,
    #[error("there are {MAX_OPEN} open replays already")]
    TooManyOpen,
    #[error("what {MAX_UNTIDY} replays that are over have kept is still being removed")]
    TooManyUntidy,
    /// It runs, or has run.
    #[error("the replay was executed before")]
    Executed,
    #[error("the preview has expired")]
    Expired,
    /// It is finished or cancelled.
    #[error("the replay is over")]
    Over,
    #[error("the database refused or did not answer")]
    Database(#[from] sqlx::Error),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    pub id: ReplayId,
    pub status: Status,
    /// What was asked for, as JSON.
    pub filter: String,
    /// Letters that the preview saw.
    pub matches: u32,
    /// It saw as many as one replay holds; there may be more.
    pub is_full: bool,
    pub created_at: OffsetDateTime,
    /// Until when it can be executed.
    pub expires_at: OffsetDateTime,
    pub started_at: Option<OffsetDateTime>,
    pub ended_at: Option<OffsetDateTime>,
    /// Letters that are on their way again, or were.
    pub replayed: u32,
    pub skipped: Skipped,
}

/// Where a replay stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Previewed,
    Running,
    Finished,
    Cancelled,
    Expired,
}

/// Letters that were left as they are, by why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Open again, or delivered since.
    pub not_dead_lettered: u32,
    /// Sent since the preview, or held and given up, and dead once more.
    pub died_again: u32,
    pub endpoint_deleted: u32,
    pub body_gone: u32,
    /// The registry no longer lists their application for their endpoint.
    pub not_listed: u32,
}

impl Skipped {
    pub const fn total(self) -> u32 {
        self.not_dead_lettered + self.died_again + self.endpoint_deleted + self.body_gone + self.not_listed
    }
}

impl Status {
    pub const ALL: &[Self] =
        &[Self::Previewed, Self::Running, Self::Finished, Self::Cancelled, Self::Expired];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Previewed => "previewed",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a replay's state is `previewed`, `running`, `finished`, `cancelled` or `expired`")]
pub struct UnknownStatus;

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for Status {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        Self::ALL.iter().copied().find(|status| status.as_str() == text).ok_or(UnknownStatus)
    }
}
