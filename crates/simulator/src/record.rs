//! The bounded memory of what arrived.
//!
//! Invariant: memory is bounded by [`MAX_REQUESTS_KEPT`] requests of bounded size; numbers keep rising when old requests
//! are forgotten, so a reader notices a gap.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use serde::Serialize;
use time::OffsetDateTime;
use tokio::sync::watch;

use crate::trust::Signature;

/// Requests remembered; the oldest are forgotten first.
pub const MAX_REQUESTS_KEPT: usize = 1_000;
/// Most bytes of a body that are shown; the hash and the size speak for the whole.
pub const MAX_BODY_SHOWN_BYTES: usize = 4_096;

/// One request as it arrived.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Received {
    /// Counts all requests from 1.
    pub number: u64,
    #[serde(with = "time::serde::rfc3339")]
    pub received_at: OffsetDateTime,
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The `webhook-id` header: the delivery's id, by which receivers dedupe.
    pub webhook_id: Option<String>,
    pub signature: Signature,
    /// What it got: a status, or `hang`, `close`, `reset`.
    pub answer: String,
    /// Name and value, in the order they came; bytes that are no UTF-8 are replaced.
    pub headers: Vec<(String, String)>,
    pub body_bytes: usize,
    /// SHA-256 of the whole body, in hexadecimal.
    pub body_sha256: String,
    /// The first [`MAX_BODY_SHOWN_BYTES`] of the body; bytes that are no UTF-8 are replaced.
    pub body: String,
}

impl Received {
    /// The first header of this name, compared without case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// The newest requests, and a signal for each arrival.
#[derive(Debug)]
pub(crate) struct Requests {
    kept: Mutex<VecDeque<Received>>,
    total: watch::Sender<u64>,
}

impl Default for Requests {
    fn default() -> Self {
        Self { kept: Mutex::default(), total: watch::Sender::new(0) }
    }
}

impl Requests {
    /// Remembers a request and gives it its number.
    pub(crate) fn add(&self, mut received: Received) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        received.number = *self.total.borrow() + 1;
        let number = received.number;
        if kept.len() == MAX_REQUESTS_KEPT {
            kept.pop_front();
        }
        kept.push_back(received);
        // Raised under the lock, so that numbers and order agree.
        self.total.send_replace(number);
    }

    pub(crate) fn newest(&self, limit: usize) -> Vec<Received> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().take(limit).cloned().collect()
    }

    pub(crate) fn forget(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn total(&self) -> u64 {
        *self.total.borrow()
    }

    pub(crate) fn arrivals(&self) -> watch::Receiver<u64> {
        self.total.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received() -> Received {
        Received {
            number: 0,
            received_at: OffsetDateTime::UNIX_EPOCH,
            method: "POST".to_owned(),
            target: "/ok".to_owned(),
            webhook_id: None,
            signature: Signature::Unsigned,
            answer: "200".to_owned(),
            headers: Vec::new(),
            body_bytes: 0,
            body_sha256: String::new(),
            body: String::new(),
        }
    }

    #[test]
    fn the_oldest_are_forgotten_and_numbers_go_on() {
        let requests = Requests::default();
        for _ in 0..=MAX_REQUESTS_KEPT {
            requests.add(received());
        }
        let kept = requests.newest(usize::MAX);
        assert_eq!(kept.len(), MAX_REQUESTS_KEPT);
        assert_eq!(kept.first().map(|newest| newest.number), Some(1_001));
        assert_eq!(kept.last().map(|oldest| oldest.number), Some(2));
        assert_eq!(requests.newest(1).len(), 1);
        requests.forget();
        assert!(requests.newest(1).is_empty());
        assert_eq!(requests.total(), 1_001);
    }
}
