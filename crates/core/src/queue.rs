//! Messages between processes about deliveries that are ready, and the port through which they come.
//!
//! Invariant: a message is a hint and carries no truth. It names rows and says at which attempt they were when it was
//! written; whoever receives it claims the rows. So it may be lost, repeated, late or out of order without harm.

mod message;
mod route;

use std::{fmt, sync::Arc};

pub use message::{MOST_POINTERS, Pointer, Unreadable, read, write};
pub use route::{Bucket, Route};

use crate::port::Pending;

/// Where news of ready deliveries comes from, besides the table that is always looked at.
pub trait Queue: Send + Sync + fmt::Debug {
    /// Completes with the next message; while the queue is away, it waits. May be dropped before: nothing is lost then.
    fn arrival(&self) -> Pending<'_, Arrival>;

    /// Whether what is announced now will soon arrive somewhere. While it is not, the table is all there is.
    fn is_up(&self) -> bool;

    /// Something was announced, and waits in the database to be published. Cheap, and may be called for nothing.
    fn announced(&self);
}

/// What brings the messages that are announced now; `None`: the table is all there is.
pub fn usable(queue: Option<&Arc<dyn Queue>>) -> Option<&dyn Queue> {
    queue.map(|queue| &**queue).filter(|queue| queue.is_up())
}

/// A message, and what is owed for it.
#[derive(Debug)]
pub struct Arrival {
    pub pointers: Vec<Pointer>,
    pub receipt: Receipt,
}

/// Each delivery of a message holds one until its result is durable, or until it is left to the table. When the last is
/// dropped the message is acknowledged: until then the queue would bring it again to somebody else.
#[derive(Clone)]
pub struct Receipt {
    _owed: Arc<dyn Send + Sync>,
}

impl Receipt {
    /// `owed` is dropped with the last clone.
    pub fn new(owed: impl Send + Sync + 'static) -> Self {
        Self { _owed: Arc::new(owed) }
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Receipt")
    }
}
