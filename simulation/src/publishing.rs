//! Publishers: they send events, some under a key, and send again what they do not know the fate of.

use std::{collections::BTreeMap, sync::PoisonError};

use bytes::Bytes;
use postrider_core::{
    event::{Fingerprint, KeySpace},
    id::EventId,
    name::{EventType, IdempotencyKey},
};
use postrider_store::ingest::{Accepted, NewEvent, Refusal, Target};
use postrider_testkit::ledger;

use crate::{
    check::Breach,
    gate::ProcessId,
    model::EVENT_TYPES,
    process::{Answered, POOL_CONNECTIONS},
    run::{Run, Stop},
};

const CONTENT_TYPE: &str = "application/json";
/// Events that are published again at once.
const MOST_AGAIN: usize = 4;

/// What publishers wait for, and what they know.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    waiting: Vec<Publication>,
    /// Those that got no answer, or one that says to try again.
    again: Vec<What>,
    /// The body that was published under each key first.
    bodies: BTreeMap<(usize, String), Bytes>,
    /// All is well, and no publisher may be refused.
    is_probing: bool,
    /// Times that a probe came upon a connection which an outage had cut before.
    probed_again: BTreeMap<ProcessId, usize>,
    next_key: usize,
    next_body: usize,
}

#[derive(Debug)]
struct Publication {
    process: ProcessId,
    what: What,
    event_id: EventId,
    answered: Answered,
}

/// An event as its publisher knows it.
#[derive(Debug, Clone)]
struct What {
    application: usize,
    event_type: &'static str,
    key: Option<String>,
    body: Bytes,
}

impl Publications {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A process has ended: whoever waited for its answer knows nothing.
    pub(crate) fn lose(&mut self, process: ProcessId) {
        let (lost, kept) =
            std::mem::take(&mut self.waiting).into_iter().partition(|one| one.process == process);
        self.waiting = kept;
        let lost: Vec<Publication> = lost;
        self.again.extend(lost.into_iter().map(|one| one.what).filter(|what| what.key.is_some()));
    }
}

impl Run<'_> {
    /// A few events at once, through one process.
    pub(crate) fn publish(&mut self, process: ProcessId) -> Result<(), Stop> {
        for _ in 0..self.chance.between(1, 4) {
            let what = self.new_event();
            self.submit(process, what);
        }
        self.touch(process)
    }

    /// An event that was taken before under its key; it must be taken again, and change nothing.
    pub(crate) fn publish_probe(&mut self, process: ProcessId) -> Result<(), Stop> {
        let known: Vec<&ledger::Accepted> =
            self.ledger.accepted.iter().filter(|accepted| accepted.key.is_some()).collect();
        if known.is_empty() {
            return Ok(());
        }
        let accepted = known[self.chance.below(known.len())].clone();
        let Some((name, key)) = accepted.key else { return Ok(()) };
        let application = self.model.applications.iter().position(|application| application.name == name);
        let what = What {
            application: application.unwrap_or_default(),
            event_type: EVENT_TYPES[0],
            key: Some(key.to_string()),
            body: accepted.body,
        };
        self.publications.is_probing = true;
        self.submit(process, what);
        self.touch(process)
    }

    /// Publishers that have to try again do so, some through another process.
    pub(crate) fn publish_once_more(&mut self) -> Result<(), Stop> {
        let engines: Vec<ProcessId> =
            self.engines().into_iter().filter(|id| self.takes_events(*id)).collect();
        if engines.is_empty() {
            return Ok(());
        }
        let again = &mut self.publications.again;
        let some = again.split_off(again.len().saturating_sub(MOST_AGAIN));
        for what in some {
            let process = self.chance.pick(&engines);
            self.trace.count("published again");
            self.submit(process, what);
            self.touch(process)?;
        }
        Ok(())
    }

    /// A new event. Everything before it has ended and is long ago, so that it is within every quota.
    pub(crate) fn publish_after_all(&mut self, process: ProcessId) -> Result<(), Stop> {
        self.publications.is_probing = true;
        let what = What { key: None, ..self.new_event() };
        self.submit(process, what);
        self.touch(process)
    }

    pub(crate) fn takes_events(&self, id: ProcessId) -> bool {
        self.processes.get(&id).is_some_and(|process| !process.is_frozen && !process.is_draining)
    }

    fn new_event(&mut self) -> What {
        let application = self.chance.below(self.model.applications.len());
        let event_type = self.chance.pick(&EVENT_TYPES);
        self.publications.next_body += 1;
        let body = Bytes::from(format!("{{\"n\":{}}}", self.publications.next_body));
        let known: Vec<(usize, String)> = self.publications.bodies.keys().cloned().collect();
        match self.chance.below(5) {
            0 | 1 => What { application, event_type, key: None, body },
            2 if !known.is_empty() => {
                // A key again: with the same event, or by mistake with another.
                let (application, key) = known[self.chance.below(known.len())].clone();
                let first = self.publications.bodies[&(application, key.clone())].clone();
                let body = if self.chance.one_in(4) { body } else { first };
                What { application, event_type: EVENT_TYPES[0], key: Some(key), body }
            }
            _ => {
                self.publications.next_key += 1;
                let key = format!("key-{}", self.publications.next_key);
                self.publications.bodies.insert((application, key.clone()), body.clone());
                What { application, event_type: EVENT_TYPES[0], key: Some(key), body }
            }
        }
    }

    fn submit(&mut self, process: ProcessId, what: What) {
        let event_id = EventId::from_fresh(self.chance.uuid());
        let number = self.trace.name_event(event_id);
        let application = &self.model.applications[what.application];
        let event_type: EventType = what.event_type.parse().expect("an event type");
        let event = NewEvent {
            event_id,
            key: what.key.as_deref().map(|key| (KeySpace::Events, key.parse().expect("a key"))),
            fingerprint: Fingerprint::of(&event_type, CONTENT_TYPE, &what.body),
            event_type,
            content_type: CONTENT_TYPE.to_owned(),
            body: what.body.clone(),
            trace_id: self.chance.uuid().into_bytes(),
            target: Target::Plan,
        };
        let (name, key) = (application.name, what.key.as_deref().unwrap_or("no key"));
        self.trace.line(format_args!("p{process} is given e{number} of {name} with {key}"));
        self.trace.count("published");
        let Some(to) = self.processes.get(&process) else { return };
        let answered = to.publish(application.token_hash, event);
        self.publications.waiting.push(Publication { process, what, event_id, answered });
    }

    /// Takes note of what publishers have heard.
    pub(crate) fn hear_answers(&mut self, process: ProcessId) -> Result<(), Stop> {
        let (mut waiting, mut again) = (Vec::new(), Vec::new());
        for publication in std::mem::take(&mut self.publications.waiting) {
            let is_here = publication.process == process;
            let answer = *publication.answered.lock().unwrap_or_else(PoisonError::into_inner);
            match answer.filter(|_| is_here) {
                None => waiting.push(publication),
                Some(Ok(accepted)) => self.accepted(process, publication.what, accepted),
                Some(Err(Refusal::Unavailable | Refusal::Unknown))
                    if self.publications.is_probing && self.may_probe_again(process) =>
                {
                    self.trace.count("probed again");
                    again.push(publication.what);
                }
                Some(Err(refusal)) if self.publications.is_probing => {
                    return Err(
                        Breach(format!("p{process} refuses although all is well: {refusal:?}")).into()
                    );
                }
                Some(Err(refusal)) => self.refused(process, publication, refusal),
            }
        }
        self.publications.waiting = waiting;
        if again.is_empty() {
            return Ok(());
        }
        for what in again {
            self.submit(process, what);
        }
        self.touch(process)
    }

    /// A process learns of each connection that was cut while idle by using it once: its pool has no more than these.
    fn may_probe_again(&mut self, process: ProcessId) -> bool {
        let times = self.publications.probed_again.entry(process).or_default();
        *times += 1;
        *times <= POOL_CONNECTIONS
    }

    fn accepted(&mut self, process: ProcessId, what: What, accepted: Accepted) {
        let number = self.trace.name_event(accepted.event_id);
        let word = if accepted.duplicate { "again" } else { "new" };
        self.trace
            .line(format_args!("p{process} accepts e{number}, {word}, {} deliveries", accepted.deliveries));
        let application = self.model.applications[what.application].name.to_owned();
        let key = what.key.map(|key| (application, key.parse::<IdempotencyKey>().expect("a key")));
        let Accepted { event_id, deliveries, duplicate: _ } = accepted;
        self.ledger.accepted.push(ledger::Accepted { event_id, key, deliveries, body: what.body });
    }

    fn refused(&mut self, process: ProcessId, publication: Publication, refusal: Refusal) {
        self.trace.line(format_args!("p{process} refuses: {}", word(refusal)));
        self.trace.count(format!("refused: {}", word(refusal)));
        let Publication { what, event_id, .. } = publication;
        let is_worth_another_try = match refusal {
            Refusal::Unknown => true,
            Refusal::Unavailable
            | Refusal::Overloaded
            | Refusal::Contended
            | Refusal::OverQuota(_)
            | Refusal::Uncounted => {
                self.ledger.refused.push(event_id);
                true
            }
            Refusal::Conflict { .. }
            | Refusal::Unauthorized
            | Refusal::ApplicationDisabled
            | Refusal::EndpointUnavailable
            | Refusal::Unstorable => {
                self.ledger.refused.push(event_id);
                false
            }
        };
        if is_worth_another_try && what.key.is_some() {
            self.publications.again.push(what);
        }
    }
}

/// Without ids, which differ between two runs of one seed where the engine makes them.
const fn word(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Conflict { .. } => "conflict",
        Refusal::Unauthorized => "unauthorized",
        Refusal::ApplicationDisabled => "application disabled",
        Refusal::EndpointUnavailable => "endpoint unavailable",
        Refusal::Unstorable => "unstorable",
        Refusal::OverQuota(_) => "over quota",
        Refusal::Uncounted => "uncounted",
        Refusal::Overloaded => "overloaded",
        Refusal::Contended => "contended",
        Refusal::Unavailable => "unavailable",
        Refusal::Unknown => "unknown",
    }
}
