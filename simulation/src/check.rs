//! What must hold: some of it after every step, the rest when everything has ended.
//!
//! The run itself is the witness of what was sent and what was answered; the database says what was made of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use postrider_core::{id::DeliveryId, retry::FailureKind, signature};
use postrider_engine::worker::LATEST_START;
use uuid::Uuid;

use crate::{
    model::Model,
    network::{Reaction, Sent},
    trace::Trace,
};

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach(pub String);

/// An attempt: the delivery and the number.
type AttemptId = (DeliveryId, u32);

/// Reads what [`Witness::compare`] takes.
pub const EVIDENCE: (&str, &str) = (
    "evidence",
    "
    SELECT 'twice', q.delivery_id::text, '', '', ''
      FROM postrider.delivery_queue q JOIN postrider.deliveries d USING (tenant_id, delivery_id)
    UNION ALL
    SELECT 'ended', delivery_id::text, attempt_number::text, outcome, '' FROM postrider.deliveries
    UNION ALL
    SELECT 'open', delivery_id::text, attempt_number::text, state, tries::text FROM postrider.delivery_queue
    UNION ALL
    SELECT 'attempt', delivery_id::text, attempt_number::text, outcome, coalesce(status_code::text, failure, '')
      FROM postrider.attempts",
);

/// When an attempt was claimed, in microseconds: the claim is the lease, or what its taking over has left of it.
pub const CLAIM: (&str, &str) = (
    "claim (uuid, int)",
    "SELECT (extract(epoch FROM leased_at) * 1000000)::bigint FROM postrider.delivery_queue
      WHERE delivery_id = $1 AND attempt_number = $2 AND state = 'in_flight'
     UNION ALL
     SELECT (extract(epoch FROM started_at) * 1000000)::bigint FROM postrider.attempts
      WHERE delivery_id = $1 AND attempt_number = $2",
);

/// A request, and how long ago it was claimed by the database's clock; `None`: the database knows no such claim.
#[derive(Debug)]
pub struct Seen<'a> {
    pub sent: &'a Sent,
    pub claimed_ago: Option<Duration>,
}

/// What the run has seen.
#[derive(Debug, Default)]
pub struct Witness {
    sent: BTreeSet<AttemptId>,
    reactions: BTreeMap<AttemptId, Reaction>,
    interrupted: BTreeSet<AttemptId>,
    /// The number under which each open delivery was claimed last.
    claimed: BTreeMap<DeliveryId, u32>,
    /// How each delivery ended, as far as the database has said.
    pub ended: BTreeMap<DeliveryId, Ended>,
    /// Dead letters that people may have sent again, and how often.
    pub replays: BTreeMap<DeliveryId, u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub is_delivered: bool,
    pub attempt: u32,
}

impl Witness {
    /// Looks at a request as its receiver would.
    pub fn sent(&mut self, seen: &Seen<'_>, model: &Model, trace: &mut Trace) -> Result<(), Breach> {
        let Seen { sent, claimed_ago } = seen;
        let id = (sent.id.delivery, sent.id.attempt);
        let name = format!("{} #{}", trace.name(sent.id.delivery), sent.id.attempt);
        let endpoint =
            model.endpoint_at(&sent.path).ok_or_else(|| Breach(format!("{name} went to {}", sent.path)))?;
        if !self.sent.insert(id) {
            return Err(Breach(format!("{name} was sent twice under one number")));
        }
        if claimed_ago.is_none_or(|age| age > LATEST_START) {
            return Err(Breach(format!("{name} was sent {claimed_ago:?} after its claim")));
        }
        if let Some(ended) = self.ended.get(&sent.id.delivery) {
            if !self.interrupted.contains(&id) {
                return Err(Breach(format!("{name} was sent after {ended:?}")));
            }
            trace.count("late request of a lease taken over, after the end");
        } else if self.interrupted.contains(&id) {
            trace.count("late request of a lease taken over");
        }
        let header = |name: &str| sent.headers.get(name).and_then(|value| value.to_str().ok());
        let key = header("postrider-key-id").and_then(|text| text.parse().ok());
        let key = key.and_then(|id| endpoint.keys.get(&id));
        let time = header("webhook-timestamp").and_then(|text| text.parse().ok()).unwrap_or_default();
        let key = key.ok_or_else(|| Breach(format!("{name} names a key that its endpoint never had")))?;
        signature::verify(&sent.headers, &sent.body, time, std::slice::from_ref(key))
            .map_err(|rejection| Breach(format!("{name} does not verify: {rejection:?}")))
    }

    pub fn reacted(&mut self, delivery: DeliveryId, attempt: u32, reaction: Reaction) {
        self.reactions.insert((delivery, attempt), reaction);
    }

    /// Compares what the database says with what was seen.
    pub fn compare(&mut self, rows: &[Vec<String>], model: &Model, trace: &mut Trace) -> Result<(), Breach> {
        let most = model.endpoints.iter().map(|endpoint| endpoint.max_attempts).max().unwrap_or_default();
        self.ended.clear();
        for row in rows {
            let [kind, delivery, number, word, detail] = row.as_slice() else {
                return Err(Breach(format!("an odd row: {row:?}")));
            };
            let delivery = DeliveryId::from_uuid(delivery.parse::<Uuid>().unwrap_or_default());
            let number: u32 = number.parse().unwrap_or_default();
            let name = format!("{} #{number}", trace.name(delivery));
            let allowed =
                u32::from(most) * (1 + u32::from(self.replays.get(&delivery).copied().unwrap_or_default()));
            if number > allowed {
                return Err(Breach(format!("{name} is more than the policy allows")));
            }
            match kind.as_str() {
                "twice" => return Err(Breach(format!("{name} is open and ended at once"))),
                "ended" => {
                    let ended = Ended { is_delivered: word == "delivered", attempt: number };
                    self.ended.insert(delivery, ended);
                }
                "open" => self.note_open(delivery, number, word, trace),
                "attempt" if word == "interrupted" => {
                    self.interrupted.insert((delivery, number));
                }
                "attempt" => self.judge((delivery, number), &name, word, detail)?,
                _ => return Err(Breach(format!("an odd row: {row:?}"))),
            }
        }
        Ok(())
    }

    /// Takes note of claims, and of those that were given back unsent.
    fn note_open(&mut self, delivery: DeliveryId, number: u32, state: &str, trace: &mut Trace) {
        if state == "in_flight" {
            self.claimed.insert(delivery, number);
        } else if self.claimed.remove(&delivery).is_some_and(|claimed| number + 1 == claimed) {
            trace.count("claim given back");
        }
    }

    /// A recorded result must be what the receiver answered to this very attempt.
    fn judge(&self, id: AttemptId, name: &str, outcome: &str, detail: &str) -> Result<(), Breach> {
        let Some(reaction) = self.reactions.get(&id) else {
            return Err(Breach(format!("{name} is recorded as {outcome}, but nothing was answered to it")));
        };
        let expected = match reaction {
            Reaction::Timeout => FailureKind::Timeout.as_str().to_owned(),
            Reaction::ConnectionLost => FailureKind::ConnectionLost.as_str().to_owned(),
            Reaction::Status(status) => status.to_string(),
            Reaction::Busy { .. } => "429".to_owned(),
        };
        let is_success = matches!(reaction, Reaction::Status(200..=299));
        let is_final = matches!(reaction, Reaction::Status(404 | 410));
        let fits = match outcome {
            "delivered" => is_success,
            "scheduled" => !is_success && !is_final,
            "dead_lettered" => !is_success,
            _ => false,
        };
        if fits && detail == expected {
            return Ok(());
        }
        Err(Breach(format!(
            "{name} is recorded as {outcome} ({detail}), but the answer to it was {reaction:?}"
        )))
    }
}
