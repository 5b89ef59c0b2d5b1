//! What must hold: some of it after every step, the rest when everything has ended.
//!
//! The run itself is the witness of what was sent and what was answered; the database says what was made of it.

mod deletions;
mod replays;
mod used;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use postrider_core::{
    id::{DeliveryId, EndpointId, ReplayId},
    retry::FailureKind,
    signature,
};
use postrider_engine::worker::LATEST_START;
use uuid::Uuid;

use crate::{
    model::Model,
    network::{Reaction, Sent},
    trace::Trace,
};

pub use self::{
    deletions::Deletions,
    replays::{LETTERS, REPLAYS, Replays},
    used::{USED, Used},
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
    SELECT 'twice', q.delivery_id::text, '', '', '', '', ''
      FROM postrider.delivery_queue q JOIN postrider.deliveries d USING (tenant_id, delivery_id)
    UNION ALL
    SELECT 'ended', delivery_id::text, attempt_number::text, outcome, coalesce(dead_reason, ''), endpoint_id::text,
           ended_at::text
      FROM postrider.deliveries
    UNION ALL
    SELECT 'open', delivery_id::text, attempt_number::text, state, coalesce(replay_id::text, ''), endpoint_id::text, ''
      FROM postrider.delivery_queue
    UNION ALL
    SELECT 'attempt', delivery_id::text, attempt_number::text, outcome, coalesce(status_code::text, failure, ''), '', ''
      FROM postrider.attempts
    UNION ALL
    SELECT 'deleted', '', '', '', '', endpoint_id::text, '' FROM postrider.endpoints WHERE deleted_at IS NOT NULL",
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
    /// Dead letters that people may have sent again one by one, and how often they may still come back for it.
    pub retries: BTreeMap<DeliveryId, u16>,
    /// How often each dead letter has come back.
    returns: BTreeMap<DeliveryId, u32>,
    pub replays: Replays,
    pub deletions: Deletions,
    pub used: Used,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub is_delivered: bool,
    pub attempt: u32,
    /// Empty where it was delivered.
    pub reason: String,
    pub endpoint: EndpointId,
    /// As the database writes it.
    pub at: String,
}

/// A delivery that has not ended.
#[derive(Debug)]
pub struct Open {
    number: u32,
    state: String,
    endpoint: EndpointId,
    /// Which replay brought it back.
    replay: Option<ReplayId>,
}

impl Open {
    fn is_claimed(&self) -> bool {
        self.state == "in_flight"
    }
}

/// A row of [`EVIDENCE`].
struct Row<'a> {
    kind: &'a str,
    delivery: DeliveryId,
    number: u32,
    word: &'a str,
    detail: &'a str,
    endpoint: EndpointId,
    at: &'a str,
}

impl<'a> Row<'a> {
    fn of(row: &'a [String]) -> Result<Self, Breach> {
        let [kind, delivery, number, word, detail, endpoint, at] = row else {
            return Err(Breach(format!("an odd row: {row:?}")));
        };
        let id = |text: &str| text.parse::<Uuid>().unwrap_or_default();
        Ok(Self {
            kind,
            delivery: DeliveryId::from_uuid(id(delivery)),
            number: number.parse().unwrap_or_default(),
            word,
            detail,
            endpoint: EndpointId::from_uuid(id(endpoint)),
            at,
        })
    }
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
        if !self.deletions.permits(endpoint.id, id) && !self.interrupted.contains(&id) {
            return Err(Breach(format!(
                "{name} was sent although its endpoint was deleted before it was claimed"
            )));
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

    /// Compares what the database says with what was seen. What replays stand at is noted before.
    pub fn compare(&mut self, rows: &[Vec<String>], model: &Model, trace: &mut Trace) -> Result<(), Breach> {
        let rows = rows.iter().map(|row| Row::of(row)).collect::<Result<Vec<_>, _>>()?;
        let mut open = BTreeMap::new();
        let mut ended = BTreeMap::new();
        for row in &rows {
            let Row { number, word, detail, endpoint, .. } = *row;
            match row.kind {
                "twice" => {
                    return Err(Breach(format!("{} is open and ended at once", trace.name(row.delivery))));
                }
                "open" => {
                    let replay = detail.parse().ok().map(ReplayId::from_uuid);
                    open.insert(row.delivery, Open { number, state: word.to_owned(), endpoint, replay });
                }
                "ended" => {
                    let (is_delivered, reason, at) =
                        (word == "delivered", detail.to_owned(), row.at.to_owned());
                    ended.insert(row.delivery, Ended { is_delivered, attempt: number, reason, endpoint, at });
                }
                _ => {}
            }
        }
        self.note_returns(&open, trace)?;
        self.replays.require_counts()?;
        if let Some((delivery, what)) = self.deletions.find_opened(&open) {
            return Err(Breach(format!("{} {what}", trace.name(delivery))));
        }
        let deleted = rows.iter().filter(|row| row.kind == "deleted").map(|row| row.endpoint);
        for endpoint in deleted.filter(|endpoint| !self.deletions.contains(*endpoint)).collect::<Vec<_>>() {
            self.deletions.note(endpoint, &open);
            trace.count("endpoint deleted");
        }
        self.ended = ended;
        let most = model.endpoints.iter().map(|endpoint| endpoint.max_attempts).max().unwrap_or_default();
        for row in &rows {
            self.look_at(row, most, trace)?;
        }
        Ok(())
    }

    /// Who is open and had ended has come back.
    fn note_returns(&mut self, open: &BTreeMap<DeliveryId, Open>, trace: &mut Trace) -> Result<(), Breach> {
        for (delivery, open) in open {
            let Some(ended) = self.ended.get(delivery) else { continue };
            let wrong = |what: &str| Breach(format!("{} {what}", trace.name(*delivery)));
            if ended.is_delivered {
                return Err(wrong("came back although it was delivered"));
            }
            *self.returns.entry(*delivery).or_default() += 1;
            if let Some(replay) = open.replay {
                self.replays.brought_back(replay, *delivery, ended).map_err(|what| wrong(&what))?;
                continue;
            }
            match self.retries.get_mut(delivery) {
                Some(left @ 1..) => *left -= 1,
                Some(0) | None => return Err(wrong("came back though nobody asked for it")),
            }
            trace.count("dead letter came back");
        }
        Ok(())
    }

    fn look_at(&mut self, row: &Row<'_>, most: u16, trace: &mut Trace) -> Result<(), Breach> {
        let Row { kind, delivery, number, word, detail, .. } = *row;
        let name = format!("{} #{number}", trace.name(delivery));
        let returns = self.returns.get(&delivery).copied().unwrap_or_default();
        if number > u32::from(most) * (1 + returns) {
            return Err(Breach(format!("{name} is more than the policy allows")));
        }
        match kind {
            "ended" | "deleted" => {}
            "open" => self.note_open(delivery, number, word, trace),
            "attempt" if word == "interrupted" => {
                self.interrupted.insert((delivery, number));
            }
            "attempt" => self.judge((delivery, number), &name, word, detail)?,
            _ => return Err(Breach(format!("an odd row: {kind}"))),
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

    /// A recorded result must be what the receiver answered to this very attempt. None was made, and needs to be, where
    /// the endpoint was deleted after the claim.
    fn judge(&self, id: AttemptId, name: &str, outcome: &str, detail: &str) -> Result<(), Breach> {
        let Some(reaction) = self.reactions.get(&id) else {
            let is_unsent = outcome == "dead_lettered" && detail == FailureKind::Unsendable.as_str();
            let ended = self.ended.get(&id.0).filter(|_| is_unsent && !self.sent.contains(&id));
            if ended.is_some_and(|ended| self.deletions.explains(id, ended)) {
                return Ok(());
            }
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
