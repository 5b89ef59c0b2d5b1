//! Stores what the surface hands over, as simply as can be: what is waiting is one batch, in one transaction.

use std::{num::NonZeroU16, sync::Arc, time::Duration};

use postrider_core::{
    id::{EndpointId, InstanceId},
    plan::fan_out,
};
use postrider_store::{
    ingest::{Accepted, Item, Lease, NewEvent, Planned, Refusal, Stored, Submission, Target, run_batch},
    routing::{Cache, Routing},
};
use sqlx::PgPool;
use tokio::sync::mpsc;
use uuid::Uuid;

const MAX_BATCH: usize = 256;

/// Works until the surface is gone.
pub(crate) async fn run(pool: PgPool, cache: Arc<Cache>, mut submissions: mpsc::Receiver<Submission>) {
    let mut batch = Vec::new();
    while submissions.recv_many(&mut batch, MAX_BATCH).await > 0 {
        let mut open: Vec<(Arc<Routing>, Submission)> =
            batch.drain(..).map(|submission| (Arc::clone(&submission.routing), submission)).collect();
        while !open.is_empty() {
            open = store(&pool, &cache, open).await;
        }
    }
}

/// One transaction; gives back what has to be planned anew.
async fn store(
    pool: &PgPool,
    cache: &Cache,
    open: Vec<(Arc<Routing>, Submission)>,
) -> Vec<(Arc<Routing>, Submission)> {
    let items: Vec<Item<'_>> = open
        .iter()
        .map(|(routing, submission)| Item {
            routing,
            event: &submission.event,
            deliveries: plan(routing, &submission.event),
        })
        .collect();
    let lease = Lease { owner: InstanceId::from_uuid(Uuid::nil()), hard_limit: Duration::ZERO };
    let mut connection = pool.acquire().await.expect("a connection");
    let result = run_batch(&mut connection, &items, lease).await;
    let planned: Vec<u32> =
        items.iter().map(|item| u32::try_from(item.deliveries.len()).expect("few")).collect();
    drop(connection);
    let Ok(batch) = result else {
        for (_, submission) in open {
            let _ = submission.reply.send(Err(Refusal::Unavailable));
        }
        return Vec::new();
    };
    let mut again = Vec::new();
    for (((routing, submission), stored), deliveries) in open.into_iter().zip(batch.stored).zip(planned) {
        let event_id = submission.event.event_id;
        let answer = match stored {
            Stored::New => Ok(Accepted { event_id, deliveries, duplicate: false }),
            Stored::Duplicate { event_id, deliveries } => {
                Ok(Accepted { event_id, deliveries, duplicate: true })
            }
            Stored::Conflict { event_id } => Err(Refusal::Conflict { event_id }),
            Stored::Stale | Stored::KeyGone => {
                let fresh = cache.reload(routing.application_id).await.expect("the database answers");
                match fresh {
                    Some(fresh) if fresh.token_hash == routing.token_hash && fresh.enabled => {
                        again.push((fresh, submission));
                        continue;
                    }
                    Some(fresh) if fresh.token_hash == routing.token_hash => {
                        Err(Refusal::ApplicationDisabled)
                    }
                    Some(_) | None => Err(Refusal::Unauthorized),
                }
            }
        };
        // The caller may have gone.
        let _ = submission.reply.send(answer);
    }
    again
}

fn plan(routing: &Routing, event: &NewEvent) -> Vec<Planned> {
    let endpoints: Vec<EndpointId> = match event.target {
        Target::Plan => fan_out(&routing.rules, &event.event_type),
        Target::Endpoint(endpoint_id) => vec![endpoint_id],
    };
    let places = (1..).filter_map(NonZeroU16::new);
    places
        .zip(endpoints)
        .map(|(place, endpoint_id)| {
            let endpoint = &routing.endpoints[&endpoint_id];
            Planned {
                delivery_id: event.event_id.delivery(place),
                endpoint_id,
                signing_key_id: endpoint.signing_key_id,
                max_age: endpoint.retry.max_age(),
                lease: None,
            }
        })
        .collect()
}
