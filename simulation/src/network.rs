//! The scripted network: every request of the engine waits here until the run says what comes of it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use postrider_core::{
    id::DeliveryId,
    retry::{Answer, Failure, FailureKind, Outcome, RetryAfter},
};
use postrider_engine::transport::{Exchange, Outgoing, Transport};
use tokio::sync::oneshot;

use crate::{gate::ProcessId, time::Time};

/// What comes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    Status(u16),
    Busy { retry_after_s: u64 },
    Timeout,
    ConnectionLost,
}

impl Reaction {
    pub const fn status(self) -> Option<u16> {
        match self {
            Self::Status(status) => Some(status),
            Self::Busy { .. } => Some(429),
            Self::Timeout | Self::ConnectionLost => None,
        }
    }

    fn outcome(self) -> Outcome {
        let failed = |kind| Outcome::Failed(Failure { kind, detail: "as scripted".to_owned() });
        match self {
            Self::Status(status) => Outcome::Answered(Answer { status, retry_after: None }),
            Self::Busy { retry_after_s } => {
                let retry_after = Some(RetryAfter::Seconds(retry_after_s));
                Outcome::Answered(Answer { status: 429, retry_after })
            }
            Self::Timeout => failed(FailureKind::Timeout),
            Self::ConnectionLost => failed(FailureKind::ConnectionLost),
        }
    }
}

/// Which request: the sender, the delivery and the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId {
    pub process: ProcessId,
    pub delivery: DeliveryId,
    pub attempt: u32,
}

/// A request that receivers have.
#[derive(Debug)]
pub struct Sent {
    pub id: RequestId,
    pub path: String,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

#[derive(Debug)]
struct Waiting {
    path: String,
    sent_at: Duration,
    timeout: Duration,
    reply: oneshot::Sender<Exchange>,
}

/// All requests under way. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Network(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Sent since the run looked last.
    fresh: Vec<Sent>,
    waiting: BTreeMap<RequestId, Waiting>,
    /// Requests without the headers that say what they are.
    malformed: Vec<String>,
}

/// A request whose answer the run may decide on.
#[derive(Debug, Clone)]
pub struct Open {
    pub id: RequestId,
    pub path: String,
    /// The sender waits no longer.
    pub is_overdue: bool,
}

impl Network {
    pub fn transport(&self, process: ProcessId, time: Time) -> Scripted {
        Scripted { network: self.clone(), process, time }
    }

    /// What was sent since the last look, in the order of the ids.
    pub fn take_fresh(&self) -> Vec<Sent> {
        let mut fresh = std::mem::take(&mut self.lock().fresh);
        fresh.sort_by_key(|sent| sent.id);
        fresh
    }

    pub fn take_malformed(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().malformed)
    }

    pub fn open(&self, now: Duration) -> Vec<Open> {
        let state = self.lock();
        let open = state.waiting.iter().filter(|(_, waiting)| !waiting.reply.is_closed());
        open.map(|(id, waiting)| Open {
            id: *id,
            path: waiting.path.clone(),
            is_overdue: now.saturating_sub(waiting.sent_at) >= waiting.timeout,
        })
        .collect()
    }

    /// Ends a request.
    pub fn answer(&self, id: RequestId, reaction: Reaction, now: Duration) {
        let Some(waiting) = self.lock().waiting.remove(&id) else { return };
        let latency = now.saturating_sub(waiting.sent_at);
        // A sender that has died hears nothing.
        let _ = waiting.reply.send(Exchange { outcome: reaction.outcome(), latency, reconnected: false });
    }

    /// Forgets the requests of a process that has ended.
    pub fn forget(&self, process: ProcessId) {
        self.lock().waiting.retain(|id, _| id.process != process);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The network of one process.
#[derive(Debug)]
pub struct Scripted {
    network: Network,
    process: ProcessId,
    time: Time,
}

impl Transport for Scripted {
    async fn send(&self, request: Outgoing) -> Exchange {
        let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
        let delivery = header("webhook-id").and_then(|text| text.parse::<DeliveryId>().ok());
        let attempt = header("postrider-attempt").and_then(|text| text.parse::<u32>().ok());
        let (reply, answer) = oneshot::channel();
        match (delivery, attempt) {
            (Some(delivery), Some(attempt)) => {
                let id = RequestId { process: self.process, delivery, attempt };
                let path = request.destination.path_and_query().as_str().to_owned();
                let mut state = self.network.lock();
                let sent_at = self.time.elapsed();
                let waiting = Waiting { path: path.clone(), sent_at, timeout: request.timeout, reply };
                state.waiting.insert(id, waiting);
                state.fresh.push(Sent { id, path, headers: request.headers, body: request.body });
            }
            (None, _) | (_, None) => {
                self.network.lock().malformed.push(format!("{:?}", request.headers));
            }
        }
        match answer.await {
            Ok(exchange) => exchange,
            // The run is over.
            Err(_) => std::future::pending().await,
        }
    }
}
