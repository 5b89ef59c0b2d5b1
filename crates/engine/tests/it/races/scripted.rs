//! A transport that answers all its requests at one moment, so that their results make one batch.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use postrider_core::retry::{Answer, Outcome};
use postrider_engine::transport::{Exchange, Outgoing, Transport};
use tokio::sync::watch;

/// Shared by the test and the engine.
#[derive(Clone)]
pub(super) struct Scripted {
    status: fn(&Outgoing) -> u16,
    is_open: Arc<watch::Sender<bool>>,
    asked: Arc<watch::Sender<usize>>,
    ended: Arc<AtomicUsize>,
}

/// Counts a request that is over, however that came.
struct Ended(Arc<AtomicUsize>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Scripted {
    pub(super) fn answering(status: fn(&Outgoing) -> u16) -> Self {
        Self {
            status,
            is_open: Arc::new(watch::Sender::new(false)),
            asked: Arc::new(watch::Sender::new(0)),
            ended: Arc::default(),
        }
    }

    /// Waits until so many requests are there.
    pub(super) async fn asked(&self, count: usize) {
        let mut asked = self.asked.subscribe();
        asked.wait_for(|so_far| *so_far >= count).await.expect("the sender lives here");
    }

    pub(super) fn requests(&self) -> usize {
        *self.asked.borrow()
    }

    /// Requests that were answered or given up.
    pub(super) fn ended(&self) -> usize {
        self.ended.load(SeqCst)
    }

    /// Answers everything, now and later.
    pub(super) fn open(&self) {
        self.is_open.send_replace(true);
    }
}

impl Transport for Scripted {
    async fn send(&self, request: Outgoing) -> Exchange {
        let _ended = Ended(Arc::clone(&self.ended));
        let mut is_open = self.is_open.subscribe();
        self.asked.send_modify(|count| *count += 1);
        is_open.wait_for(|is_open| *is_open).await.expect("the sender lives here");
        let answer = Answer { status: (self.status)(&request), retry_after: None };
        Exchange { outcome: Outcome::Answered(answer), latency: Duration::from_millis(1), reconnected: false }
    }
}
