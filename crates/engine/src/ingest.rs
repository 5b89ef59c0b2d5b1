//! The ingest lane: events from many publishers, stored in batches that form by themselves, and handed over to be sent
//! straight after the commit where there is room for it.
//!
//! Invariant: a publisher hears "accepted" only after the commit, and each gets an answer of its own.

mod aside;
mod conclude;
pub mod count;
mod hand_off;

use std::{
    collections::{HashMap, hash_map::Entry},
    num::NonZeroU16,
    sync::Arc,
    time::Duration,
};

use postrider_core::{
    id::{ApplicationId, EndpointId, InstanceId},
    plan,
    queue::Queue,
};
use postrider_store::{
    Error,
    ingest::{self, Accepted, Item, Lease, Onward, Planned, Refusal, Submission, Target},
    lanes::{Line, bounded},
    quota, routing,
};
use sqlx::postgres::PgConnectOptions;
use tokio::sync::mpsc;
use uuid::Uuid;

pub use aside::{Kind, Locked};

use self::{
    aside::Course,
    hand_off::{Claim, Claimer},
};
use crate::{
    batch::Bounds,
    clock::Clock,
    settle::size,
    transport::Transport,
    waiting::WaitingRoom,
    wake::Notifier,
    worker::{LEASE_HARD_LIMIT, Worker, fresh_token},
};

/// Events in one statement, and the sum of what they weigh.
const BOUNDS: Bounds = Bounds { max_items: 1_000, max_weight: 8 * 1024 * 1024 };
/// What a delivery weighs besides its event's bytes: about 5,000 fill a transaction, which takes a quarter of a second.
const DELIVERY_WEIGHT: usize = 1_600;
/// A connection that was idle for so long is asked whether it still lives before events are entrusted to it: a database
/// that was restarted meanwhile would cost the next publisher its answer.
const LONGEST_TRUST: Duration = Duration::from_millis(500);
/// Times an item is tried: its plan was out of date, or its key's owner was not found.
const MAX_ROUNDS: usize = 5;

/// One lane: a connection of its own and a queue of submissions.
#[derive(Debug)]
pub struct IngestLane<T> {
    pub options: PgConnectOptions,
    pub clock: Arc<dyn Clock>,
    pub routing: Arc<routing::Cache>,
    /// `None` where this process does not deliver.
    pub worker: Option<Arc<Worker<T>>>,
    pub notifier: Notifier,
    /// Messages about what is ready, where a broker is used besides the table.
    pub queue: Option<Arc<dyn Queue>>,
    pub kind: Kind,
    /// Shared by all.
    pub locked: Arc<Locked>,
    /// Shared by all.
    pub known: Arc<quota::Known>,
}

/// A submission with its plan.
struct Prepared {
    submission: Submission,
    planned: Vec<Planned>,
    /// What those deliveries may be sent with that are born claimed, by their place in `planned`.
    claims: Vec<(usize, Claim)>,
}

impl<T: Transport> IngestLane<T> {
    /// Runs until all publishers are gone and everything they sent is answered.
    pub async fn run(self, mut receiver: mpsc::Receiver<Submission>) -> Result<(), std::convert::Infallible> {
        // What is handed over with the last batch is among the deliveries that the drain waits for.
        let _deliveries = self.worker.as_ref().map(|worker| worker.deliveries.token());
        let mut line = Line::new(self.options.clone(), self.kind.lane());
        let mut room = WaitingRoom::new();
        let mut used_at = self.clock.monotonic();
        // Since when batch after batch has waited for locks.
        let mut stuck_since = None;
        while room.fill(&mut receiver, application).await {
            if self.clock.monotonic().saturating_sub(used_at) > LONGEST_TRUST {
                line.prove().await;
            }
            let mut batch = room.next_batch(BOUNDS, weigh);
            // Whoever no longer waits was told that it is unknown whether the event was stored.
            batch.retain(|submission| !submission.reply.is_closed());
            if let Some(side_lane) = self.kind.side_lane() {
                aside::set_aside(side_lane, self.locked.take_out(&mut batch, application));
            }
            if !batch.is_empty() {
                metrics::histogram!("postrider_ingest_batch_size").record(size(batch.len()));
                let mut course = Course::begun(*stuck_since.get_or_insert_with(|| self.clock.monotonic()));
                self.store(&mut line, batch, &mut course).await;
                if !self.turn_away(&mut room, &course) {
                    stuck_since = None;
                }
            }
            if room.is_empty() {
                // Who comes next has not waited yet.
                stuck_since = None;
            }
            used_at = self.clock.monotonic();
        }
        Ok(())
    }

    /// Stores a batch. Items whose plan was out of date are planned again, a bounded number of times.
    async fn store(&self, line: &mut Line, batch: Vec<Submission>, course: &mut Course) {
        let mut open = batch;
        for _ in 0..MAX_ROUNDS {
            if open.is_empty() {
                return;
            }
            let claimer = Claimer {
                life: self.worker.as_ref().map(|worker| worker.identity.life()),
                token: fresh_token(),
            };
            let prepared =
                open.into_iter().filter_map(|submission| self.prepare(submission, &claimer)).collect();
            let again = self.run_parts(line, prepared, &claimer, course).await;
            open = self.refresh(again).await;
        }
        for submission in open {
            answer(submission, Err(Refusal::Contended));
        }
    }

    /// Runs a batch; one that holds a refused value is halved until that value stands alone. Returns the submissions
    /// that need another round.
    async fn run_parts(
        &self,
        line: &mut Line,
        batch: Vec<Prepared>,
        claimer: &Claimer,
        course: &mut Course,
    ) -> Vec<Submission> {
        let mut again = Vec::new();
        let mut parts = match self.kind {
            Kind::Main { .. } | Kind::Metered { .. } => vec![batch],
            Kind::Side => aside::by_application(batch),
        };
        while let Some(part) = parts.pop() {
            let mut part = self.still_waiting(part, course);
            if part.is_empty() {
                continue;
            }
            // Apart, since nothing was sent where there is none.
            if line.connection().await.is_err() {
                parts.push(part);
                break;
            }
            let asked_at = self.clock.monotonic();
            match self.try_run(line, &part, claimer).await {
                Ok(batch) => {
                    course.got_through = true;
                    self.got_through(&part);
                    again.extend(self.conclude(part, &batch, asked_at));
                }
                Err(Error::Data(error)) if part.len() == 1 => {
                    tracing::warn!(%error, "an event cannot be stored");
                    refuse(part, Refusal::Unstorable);
                }
                Err(Error::Data(_)) => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
                Err(Error::Contended(error)) => {
                    tracing::info!(%error, events = part.len(), "events waited too long for a lock");
                    course.waited_in_vain = true;
                    // Apart, since it is rare: every batch would carry room for it otherwise.
                    Box::pin(self.step_aside(line, part, &mut parts)).await;
                }
                Err(Error::Unavailable(_)) => {
                    refuse(part, Refusal::Unknown);
                    break;
                }
            }
        }
        // The line has told the log. What is left would wait as long, part after part.
        for part in parts {
            refuse(part, Refusal::Unavailable);
        }
        again
    }

    async fn try_run(
        &self,
        line: &mut Line,
        part: &[Prepared],
        claimer: &Claimer,
    ) -> Result<ingest::Batch, Error> {
        let items: Vec<Item<'_>> = part
            .iter()
            .map(|prepared| Item {
                routing: &prepared.submission.routing,
                event: &prepared.submission.event,
                deliveries: &prepared.planned,
            })
            .collect();
        // Without a worker no delivery of the batch carries a token, and the owner is never written.
        let owner = claimer.life.as_ref().map_or(InstanceId::from_uuid(Uuid::nil()), |life| life.instance_id);
        let onward = match self.queue {
            Some(_) => Onward::Outbox,
            None => Onward::Table(Lease { owner, hard_limit: LEASE_HARD_LIMIT }),
        };
        let connection = line.connection().await?;
        // Also where somebody's quotas are news to everybody's lane.
        let stored = if items.iter().any(Item::is_metered) {
            bounded(ingest::insert_metered(connection, &items, onward, &self.known)).await
        } else {
            bounded(ingest::insert(connection, &items, onward)).await
        };
        let mut batch = line.checked(stored)?;
        let resolving =
            async { ingest::resolve_taken_keys(line.connection().await?, &items, &mut batch.stored).await };
        let resolved = bounded(resolving).await;
        if let Err(error) = line.checked(resolved) {
            // What is stored stays so; the others get another try.
            tracing::debug!(%error, "the owners of keys are not known yet");
        }
        Ok(batch)
    }

    /// Plans an event; one that nobody may publish any more is answered here.
    fn prepare(&self, submission: Submission, claimer: &Claimer) -> Option<Prepared> {
        let routing = &submission.routing;
        if !routing.enabled {
            answer(submission, Err(Refusal::ApplicationDisabled));
            return None;
        }
        let endpoints: Vec<EndpointId> = match submission.event.target {
            Target::Plan => plan::fan_out(&routing.rules, &submission.event.event_type),
            Target::Endpoint(id) if routing.addressed(id).is_some() => vec![id],
            Target::Endpoint(_) => {
                answer(submission, Err(Refusal::EndpointUnavailable));
                return None;
            }
        };
        let mut planned = Vec::with_capacity(endpoints.len());
        let mut claims = Vec::new();
        let endpoints = endpoints.iter().filter_map(|id| routing.endpoints.get(id));
        for (endpoint, place) in endpoints.zip(1_u16..) {
            let Some(place) = NonZeroU16::new(place) else { continue };
            let delivery_id = submission.event.event_id.delivery(place);
            let body_bytes = submission.event.body.len();
            let claim = self.claim(endpoint, delivery_id, body_bytes, claimer);
            planned.push(Planned {
                delivery_id,
                endpoint_id: endpoint.endpoint_id,
                signing_key_id: endpoint.signing_key_id,
                max_age: endpoint.retry.max_age(),
                lease: claim.as_ref().map(|_| claimer.token),
            });
            claims.extend(claim.map(|claim| (planned.len() - 1, claim)));
        }
        Some(Prepared { submission, planned, claims })
    }

    /// Reloads the applications whose plan was out of date, and refuses whom the newer copy no longer knows.
    async fn refresh(&self, submissions: Vec<Submission>) -> Vec<Submission> {
        let mut fresh: HashMap<ApplicationId, Result<Option<Arc<routing::Routing>>, ()>> = HashMap::new();
        let mut open = Vec::with_capacity(submissions.len());
        for mut submission in submissions {
            let id = submission.routing.application_id;
            if let Entry::Vacant(entry) = fresh.entry(id) {
                // Remembered even if it failed: the next item of the application need not wait for it again.
                entry.insert(self.routing.reload(id).await.map_err(|error| {
                    tracing::warn!(%error, "an application cannot be read");
                }));
            }
            match fresh.get(&id) {
                Some(Ok(Some(routing))) if routing.has_token_of(&submission.routing) => {
                    submission.routing = Arc::clone(routing);
                    open.push(submission);
                }
                Some(Ok(_)) => answer(submission, Err(Refusal::Unauthorized)),
                Some(Err(())) | None => answer(submission, Err(Refusal::Unavailable)),
            }
        }
        open
    }
}

fn application(submission: &Submission) -> ApplicationId {
    submission.routing.application_id
}

/// Bytes to store, deliveries included; counted without making the plan, which comes later.
fn weigh(submission: &Submission) -> usize {
    let deliveries = match submission.event.target {
        Target::Plan => plan::matching(&submission.routing.rules, &submission.event.event_type).count(),
        Target::Endpoint(_) => 1,
    };
    submission.event.body.len() + deliveries * DELIVERY_WEIGHT
}

fn refuse(part: Vec<Prepared>, refusal: Refusal) {
    for prepared in part {
        answer(prepared.submission, Err(refusal));
    }
}

fn answer(submission: Submission, result: Result<Accepted, Refusal>) {
    // A publisher that hung up has lost nothing but the answer.
    let _ = submission.reply.send(result);
}
