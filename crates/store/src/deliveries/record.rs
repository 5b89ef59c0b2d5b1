//! A delivery as it is shown: its state carries exactly the data that state has.

use std::{fmt, str::FromStr};

use postrider_core::{
    id::{DeliveryId, EventId, SigningKeyId},
    name::{EventType, Name},
    retry::DeadReason,
};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::row;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub id: DeliveryId,
    pub event_id: EventId,
    pub application: Name,
    pub endpoint: Name,
    /// `None` once retention has erased the event.
    pub event_type: Option<EventType>,
    /// The key that requests are signed under.
    pub signing_key_id: SigningKeyId,
    pub accepted_at: OffsetDateTime,
    /// Number of the newest attempt; 0 before the first.
    pub attempts: u32,
    /// What the newest attempt that ended was answered; `None` without one, or when no answer came.
    pub last_status: Option<u16>,
    /// The kind of failure of the newest attempt that ended.
    pub last_failure: Option<String>,
    pub state: State,
}

/// Where a delivery stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waits for a worker.
    Pending {
        since: OffsetDateTime,
        deadline: OffsetDateTime,
    },
    /// Waits for the time of its next attempt.
    Scheduled {
        due_at: OffsetDateTime,
        deadline: OffsetDateTime,
    },
    /// An attempt is under way.
    InFlight {
        since: OffsetDateTime,
        deadline: OffsetDateTime,
    },
    /// Its endpoint is disabled; the deadline runs on.
    Held {
        deadline: OffsetDateTime,
    },
    Delivered {
        ended_at: OffsetDateTime,
    },
    /// Ended without success; waits for a person.
    DeadLettered {
        ended_at: OffsetDateTime,
        reason: DeadReason,
    },
}

/// The name of a state, as the database and the API spell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    Pending,
    Scheduled,
    InFlight,
    Held,
    Delivered,
    DeadLettered,
}

/// A word that names no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a state is `pending`, `scheduled`, `in_flight`, `held`, `delivered` or `dead_lettered`")]
pub struct UnknownStatus;

pub(super) struct Row {
    pub delivery_id: Uuid,
    pub event_id: Uuid,
    pub signing_key_id: Uuid,
    pub application: String,
    pub endpoint: String,
    pub event_type: Option<String>,
    pub accepted_at: OffsetDateTime,
    pub state: String,
    pub due_at: Option<OffsetDateTime>,
    pub deadline_at: Option<OffsetDateTime>,
    pub pending_since: Option<OffsetDateTime>,
    pub leased_at: Option<OffsetDateTime>,
    pub ended_at: Option<OffsetDateTime>,
    pub dead_reason: Option<String>,
    pub attempt_number: i32,
    pub last_status: Option<i16>,
    pub last_failure: Option<String>,
}

impl State {
    pub const fn status(&self) -> Status {
        match self {
            Self::Pending { .. } => Status::Pending,
            Self::Scheduled { .. } => Status::Scheduled,
            Self::InFlight { .. } => Status::InFlight,
            Self::Held { .. } => Status::Held,
            Self::Delivered { .. } => Status::Delivered,
            Self::DeadLettered { .. } => Status::DeadLettered,
        }
    }
}

impl Status {
    pub const ALL: &[Self] =
        &[Self::Pending, Self::Scheduled, Self::InFlight, Self::Held, Self::Delivered, Self::DeadLettered];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Scheduled => "scheduled",
            Self::InFlight => "in_flight",
            Self::Held => "held",
            Self::Delivered => "delivered",
            Self::DeadLettered => "dead_lettered",
        }
    }
}

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

impl TryFrom<Row> for Delivery {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.delivery_id.into(),
            event_id: row.event_id.into(),
            application: row::text("applications.name", &row.application)?,
            endpoint: row::text("endpoints.name", &row.endpoint)?,
            event_type: row.event_type.as_deref().map(|text| row::text("event_type", text)).transpose()?,
            signing_key_id: row.signing_key_id.into(),
            accepted_at: row.accepted_at,
            attempts: row::number("attempt_number", row.attempt_number)?,
            last_status: row.last_status.map(|value| row::number("status_code", value)).transpose()?,
            state: state(&row)?,
            last_failure: row.last_failure,
        })
    }
}

fn state(row: &Row) -> Result<State, sqlx::Error> {
    let deadline = || row::present("deadline_at", row.deadline_at);
    let ended_at = || row::present("ended_at", row.ended_at);
    Ok(match row::text("state", &row.state)? {
        Status::Pending => {
            State::Pending { since: row::present("pending_since", row.pending_since)?, deadline: deadline()? }
        }
        Status::Scheduled => {
            State::Scheduled { due_at: row::present("due_at", row.due_at)?, deadline: deadline()? }
        }
        Status::InFlight => {
            State::InFlight { since: row::present("leased_at", row.leased_at)?, deadline: deadline()? }
        }
        Status::Held => State::Held { deadline: deadline()? },
        Status::Delivered => State::Delivered { ended_at: ended_at()? },
        Status::DeadLettered => {
            let reason = dead_reason(row.dead_reason.as_deref().unwrap_or_default())?;
            State::DeadLettered { ended_at: ended_at()?, reason }
        }
    })
}

pub(crate) fn dead_reason(text: &str) -> Result<DeadReason, sqlx::Error> {
    row::text("dead_reason", text)
}
