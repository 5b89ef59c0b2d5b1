//! Where events enter: a lane for tenants with quotas, and one for all others, who are not to wait for what quotas cost.

use tokio::sync::{
    mpsc::{self, Permit, error::TrySendError},
    oneshot,
};

use super::{Accepted, NewEvent, Refusal};
use crate::routing::Routing;
use std::sync::Arc;

/// An event on its way from a publisher to the batcher, and where its answer goes.
#[derive(Debug)]
pub struct Submission {
    /// What the caller was authenticated against.
    pub routing: Arc<Routing>,
    pub event: NewEvent,
    pub reply: oneshot::Sender<Result<Accepted, Refusal>>,
}

/// Dropping all clones lets the lanes end.
#[derive(Debug, Clone)]
pub struct Entrance {
    ordinary: mpsc::Sender<Submission>,
    metered: mpsc::Sender<Submission>,
}

/// Why an event was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoEntry {
    Full,
    /// The lanes have ended.
    Closed,
}

impl Entrance {
    /// Two lanes with room for as many events.
    pub const fn new(ordinary: mpsc::Sender<Submission>, metered: mpsc::Sender<Submission>) -> Self {
        Self { ordinary, metered }
    }

    /// How many events may wait.
    pub fn max_capacity(&self) -> usize {
        self.ordinary.max_capacity()
    }

    pub fn try_send(&self, submission: Submission) -> Result<(), NoEntry> {
        self.lane_of(&submission.routing).try_send(submission).map_err(|error| match error {
            TrySendError::Full(_) => NoEntry::Full,
            TrySendError::Closed(_) => NoEntry::Closed,
        })
    }

    /// Waits for room.
    pub async fn send(&self, submission: Submission) -> Result<(), NoEntry> {
        let room = self.reserve(&submission.routing).await?;
        room.send(submission);
        Ok(())
    }

    /// Room for one event of this application, as soon as there is some.
    pub async fn reserve(&self, routing: &Routing) -> Result<Permit<'_, Submission>, NoEntry> {
        self.lane_of(routing).reserve().await.map_err(|_closed| NoEntry::Closed)
    }

    const fn lane_of(&self, routing: &Routing) -> &mpsc::Sender<Submission> {
        if routing.limits.quotas.is_any() { &self.metered } else { &self.ordinary }
    }
}

/// One lane for all.
impl From<mpsc::Sender<Submission>> for Entrance {
    fn from(lane: mpsc::Sender<Submission>) -> Self {
        Self::new(lane.clone(), lane)
    }
}
