//! What follows a commit: each publisher has its answer, and then the deliveries that were born claimed start.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    delivery::{Pending, Run},
    id::{EndpointId, TenantId},
    queue,
};
use postrider_store::{
    ingest::{self, Accepted, NewEvent, Planned, Refusal, Stored, Submission},
    routing,
    take::Content,
};
use time::OffsetDateTime;

use super::{IngestLane, Prepared, answer, hand_off::Claim};
use crate::{
    deliver::{self, Leased},
    transport::Transport,
};

/// A stored event whose publisher knows, and whose deliveries are to start.
struct Dispatch {
    routing: Arc<routing::Routing>,
    event: NewEvent,
    planned: Vec<Planned>,
    claims: Vec<(usize, Claim)>,
}

impl Dispatch {
    /// Where its deliveries wait that are not claimed.
    fn pending_at(&self) -> impl Iterator<Item = (TenantId, EndpointId)> {
        let pending = self.planned.iter().filter(|plan| plan.lease.is_none());
        pending.map(|plan| (self.routing.tenant_id, plan.endpoint_id))
    }
}

impl<T: Transport> IngestLane<T> {
    /// Answers the publishers of a committed batch and starts its deliveries. Returns what needs another round.
    pub(super) fn conclude(
        &self,
        part: Vec<Prepared>,
        batch: &ingest::Batch,
        asked_at: Duration,
    ) -> Vec<Submission> {
        let mut again = Vec::new();
        let mut new = Vec::new();
        for (prepared, stored) in part.into_iter().zip(&batch.stored) {
            match *stored {
                Stored::New => new.push(accept(prepared)),
                Stored::Duplicate { event_id, deliveries } => {
                    metrics::counter!("postrider_duplicate_events_total").increment(1);
                    answer(prepared.submission, Ok(Accepted { event_id, deliveries, duplicate: true }));
                }
                Stored::Conflict { event_id } => {
                    answer(prepared.submission, Err(Refusal::Conflict { event_id }));
                }
                Stored::OverQuota(excess) => {
                    metrics::counter!("postrider_events_over_quota_total", "quota" => excess.quota.as_str())
                        .increment(1);
                    answer(prepared.submission, Err(Refusal::OverQuota(excess)));
                }
                Stored::Uncounted => {
                    metrics::counter!("postrider_uncounted_events_total").increment(1);
                    answer(prepared.submission, Err(Refusal::Uncounted));
                }
                Stored::Stale | Stored::KeyTaken => again.push(prepared.submission),
            }
        }
        if let Some(queue) = queue::usable(self.queue.as_ref()) {
            // Whoever gets the messages begins; looking into the table as well would only get in their way.
            queue.announced();
        } else {
            self.notifier.wake(batch.accepted_at, new.iter().flat_map(Dispatch::pending_at));
            if let Some(worker) = &self.worker {
                for (tenant_id, endpoint_id) in new.iter().flat_map(Dispatch::pending_at) {
                    worker.ready.add_pending(tenant_id, endpoint_id, Some(batch.accepted_at));
                }
            }
        }
        // After all answers: while the deliveries go out, the publishers' next events come in.
        for accepted in new {
            self.dispatch(accepted, batch.accepted_at, asked_at);
        }
        again
    }

    fn dispatch(&self, accepted: Dispatch, accepted_at: OffsetDateTime, asked_at: Duration) {
        let Some(worker) = &self.worker else { return };
        let Dispatch { routing, event, planned, claims } = accepted;
        for (place, claim) in claims {
            let (Some(plan), Claim { admission, held, endpoint }) = (planned.get(place), claim) else {
                continue;
            };
            let Some(token) = plan.lease else { continue };
            let run = Run {
                id: plan.delivery_id,
                attempt_number: 0,
                tries: 0,
                deadline: accepted_at + plan.max_age,
            };
            let leased = Leased {
                tenant_id: routing.tenant_id,
                delivery: Pending { run }.claim(token),
                endpoint_id: plan.endpoint_id,
                endpoint_version: endpoint.version,
                signing_key_id: plan.signing_key_id,
                content: Some(Content {
                    event_type: event.event_type.as_str().to_owned(),
                    content_type: event.content_type.clone(),
                    trace_id: event.trace_id,
                    body: event.body.clone(),
                }),
                accepted_at,
                claimed_at: accepted_at,
                claimed: asked_at,
                held,
                receipt: None,
            };
            worker.deliveries.spawn(deliver::deliver_in_turn(Arc::clone(worker), leased, admission));
        }
    }
}

/// Tells the publisher of an event that it is stored.
fn accept(prepared: Prepared) -> Dispatch {
    let Prepared { submission, planned, claims } = prepared;
    let Submission { routing, event, reply } = submission;
    metrics::counter!("postrider_accepted_events_total").increment(1);
    let deliveries = u32::try_from(planned.len()).unwrap_or(u32::MAX);
    // A publisher that hung up has lost nothing but the answer.
    let _ = reply.send(Ok(Accepted { event_id: event.event_id, deliveries, duplicate: false }));
    Dispatch { routing, event, planned, claims }
}
