//! Refusals on their way to the audit log: what a known credential tried and may not, and logins.
//!
//! Invariant: they never hold up an answer and never grow without bound. A caller can be refused as often as he likes, so
//! the same refusal is written once a minute, and what finds no room is counted and not written. Whoever is not known
//! can neither fill the log, which is kept for good, nor crowd out what known credentials are refused.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
};

use postrider_store::audit::{self, Actor, Refusal};
use sqlx::PgPool;
use time::{Duration, OffsetDateTime};
use tokio::sync::mpsc;

/// Refusals that may wait to be written.
const MAX_WAITING: usize = 1_000;
/// Refusals in one statement.
const MAX_BATCH: usize = 100;
/// As long the same refusal is not written again.
const SILENCE: Duration = Duration::minutes(1);
/// Different refusals remembered within that time; beyond it they are counted and not written.
const MAX_REMEMBERED: usize = 10_000;
/// How many of them may be of callers who are not known: with IPv6 one of those has any number of addresses.
const MAX_ANONYMOUS: usize = 100;

/// Takes refusals to be written.
#[derive(Debug, Clone)]
pub struct Refusals {
    sender: mpsc::Sender<Refusal>,
    recent: Arc<Mutex<Recent>>,
}

/// What is waiting to be written.
#[derive(Debug)]
pub struct Waiting(mpsc::Receiver<Refusal>);

#[derive(Debug)]
struct Recent {
    since: OffsetDateTime,
    seen: HashSet<Refusal>,
    /// How many in `seen` are of callers who are not known.
    anonymous: usize,
}

impl Refusals {
    /// Both ends.
    pub fn new() -> (Self, Waiting) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let recent = Recent { since: OffsetDateTime::UNIX_EPOCH, seen: HashSet::new(), anonymous: 0 };
        (Self { sender, recent: Arc::new(Mutex::new(recent)) }, Waiting(receiver))
    }

    /// Notes a refusal, without waiting.
    pub(crate) fn note(&self, refusal: Refusal, now: OffsetDateTime) {
        let is_first = self.recent.lock().unwrap_or_else(PoisonError::into_inner).is_first(&refusal, now);
        if !is_first || self.sender.try_send(refusal).is_err() {
            metrics::counter!("postrider_audit_refusals_skipped_total").increment(1);
        }
    }
}

impl Recent {
    fn is_first(&mut self, refusal: &Refusal, now: OffsetDateTime) -> bool {
        if now - self.since >= SILENCE {
            self.since = now;
            self.seen.clear();
            self.anonymous = 0;
        }
        let is_anonymous = matches!(refusal.by.actor, Actor::Anonymous);
        let mut refusal = refusal.clone();
        if !is_anonymous {
            // Whoever has a network has as many addresses as he likes; the first of the minute is written.
            refusal.by.address = None;
        }
        let has_room = self.seen.len() < MAX_REMEMBERED && !(is_anonymous && self.anonymous >= MAX_ANONYMOUS);
        let is_first = has_room && self.seen.insert(refusal);
        self.anonymous += usize::from(is_first && is_anonymous);
        is_first
    }
}

impl Waiting {
    /// Writes refusals as they come, until the surface is gone. One that the database does not take is logged instead.
    pub async fn write(mut self, pool: PgPool) -> Result<(), std::convert::Infallible> {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        while self.0.recv_many(&mut batch, MAX_BATCH).await > 0 {
            if let Err(error) = audit::record_refusals(&pool, &batch).await {
                tracing::warn!(%error, refusals = batch.len(), "refusals could not be written to the audit log");
            }
            batch.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::problem::Code;
    use postrider_store::audit::{Action, By, Target};
    use time::macros::datetime;

    use super::*;

    #[test]
    fn the_same_refusal_is_written_once_a_minute_and_memory_is_bounded() {
        let refusal = |name: &str| Refusal {
            tenant_id: None,
            by: By { actor: Actor::Bootstrap, address: None },
            action: Action::AccessRefused,
            target: Target::named("operation", name),
            reason: Code::Forbidden,
        };
        let (refusals, mut waiting) = Refusals::new();
        let now = datetime!(2026-03-01 12:00:00 UTC);
        for _ in 0..3 {
            refusals.note(refusal("GET /one"), now);
        }
        refusals.note(refusal("GET /two"), now);
        refusals.note(refusal("GET /one"), now + SILENCE);
        let mut written = Vec::new();
        while let Ok(refusal) = waiting.0.try_recv() {
            written.extend(refusal.target.name);
        }
        assert_eq!(written, ["GET /one", "GET /two", "GET /one"]);
        for number in 0..2 * MAX_REMEMBERED {
            refusals.note(refusal(&number.to_string()), now + SILENCE);
        }
        assert_eq!(refusals.recent.lock().expect("lock").seen.len(), MAX_REMEMBERED);
    }

    #[test]
    fn whoever_is_not_known_neither_fills_the_log_nor_crowds_out_others() {
        let refusal = |actor: Actor, number: usize| Refusal {
            tenant_id: None,
            by: By { actor, address: Some(std::net::Ipv6Addr::from_bits(number as u128).into()) },
            action: Action::LoginRefused,
            target: Target::named("user", "ada@example.com"),
            reason: Code::Unauthorized,
        };
        let (refusals, mut waiting) = Refusals::new();
        let now = datetime!(2026-03-01 12:00:00 UTC);
        for number in 0..2 * MAX_REMEMBERED {
            refusals.note(refusal(Actor::Anonymous, number), now);
        }
        refusals.note(refusal(Actor::Bootstrap, 0), now);
        refusals.note(refusal(Actor::Anonymous, 0), now + SILENCE);
        let written: Vec<Refusal> = std::iter::from_fn(|| waiting.0.try_recv().ok()).collect();
        assert_eq!(written.len(), MAX_ANONYMOUS + 2);
        assert_eq!(written[MAX_ANONYMOUS].by.actor, Actor::Bootstrap);
    }
}
