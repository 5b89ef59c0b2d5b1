//! Wake-ups between processes. They say where to look, carry no truth, and may be lost: every listener also polls.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use postrider_core::id::{EndpointId, TenantId};
use postrider_store::{
    Error,
    lanes::{Lane, Line, bounded},
    wake::{self, Call, Caller, Listener, MAX_NAMED},
};
use sqlx::postgres::PgConnectOptions;
use time::OffsetDateTime;
use tokio::sync::Notify;

use crate::{clock::Clock, scout, supervisor::Shutdown, worker::Worker};

/// Least time between two wake-ups: a burst of commits makes one.
const COALESCE: Duration = Duration::from_millis(5);
/// Where more endpoints than these have something at once, the scout looks for them.
const MOST_NAMED: usize = 10 * MAX_NAMED;

/// Asks for a wake-up of all workers; cheap, and never waits.
#[derive(Debug, Clone, Default)]
pub struct Notifier(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    caller: Caller,
    pending: Mutex<Option<Pending>>,
    more: Notify,
}

/// What nobody has been told yet.
#[derive(Debug)]
struct Pending {
    since: OffsetDateTime,
    endpoints: BTreeSet<(TenantId, EndpointId)>,
}

impl Notifier {
    /// By what this process knows its own calls.
    pub fn caller(&self) -> Caller {
        self.0.caller
    }

    /// Something became pending at these endpoints, if any, at that time of the database.
    pub fn wake(&self, since: OffsetDateTime, endpoints: impl IntoIterator<Item = (TenantId, EndpointId)>) {
        let mut endpoints = endpoints.into_iter().peekable();
        if endpoints.peek().is_none() {
            return;
        }
        let mut asked = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = asked.get_or_insert_with(|| Pending { since, endpoints: BTreeSet::new() });
        pending.since = pending.since.min(since);
        for endpoint in endpoints {
            // More than are named are not told apart; one more tells that.
            if pending.endpoints.len() > MOST_NAMED {
                break;
            }
            pending.endpoints.insert(endpoint);
        }
        drop(asked);
        self.0.more.notify_one();
    }

    /// Sends the wake-ups that were asked for, on a connection of its own, until the drain. One that cannot be sent is
    /// dropped: the poll of the others finds the work.
    pub async fn run(
        self,
        options: PgConnectOptions,
        clock: Arc<dyn Clock>,
        shutdown: Shutdown,
    ) -> Result<(), std::convert::Infallible> {
        let mut line = Line::new(options, Lane::Background);
        loop {
            tokio::select! {
                () = self.0.more.notified() => {}
                () = shutdown.draining() => return Ok(()),
            }
            let calls = self.take();
            if calls.is_empty() {
                continue;
            }
            let sent = send(&mut line, &calls).await;
            if let Err(error) = line.checked(sent) {
                tracing::debug!(error = &error as &dyn std::error::Error, "a wake-up was not sent");
            }
            clock.sleep(COALESCE).await;
        }
    }

    fn take(&self) -> Vec<Call> {
        let pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Pending { since, endpoints }) = pending else { return Vec::new() };
        if endpoints.len() > MOST_NAMED {
            return vec![Call::Look];
        }
        let endpoints: Vec<(TenantId, EndpointId)> = endpoints.into_iter().collect();
        let caller = self.0.caller;
        endpoints
            .chunks(MAX_NAMED)
            .map(|endpoints| Call::At { caller, since, endpoints: endpoints.to_vec() })
            .collect()
    }
}

async fn send(line: &mut Line, calls: &[Call]) -> Result<(), Error> {
    let open = line.connection().await?;
    bounded(async { Ok(wake::notify(open, calls).await?) }).await
}

/// Hears the wake-ups until the drain: lists the endpoints they name, and sends the scout where they name none.
///
/// The scout's look steps over what a transaction keeps of dead rows, which may be all that happened since it began;
/// what is named is claimed without one. What this process itself has called is listed already.
pub async fn hear<T: Send + Sync + 'static>(
    worker: Arc<Worker<T>>,
    me: Caller,
    look: Arc<Notify>,
) -> Result<(), std::convert::Infallible> {
    let mut listener: Option<Listener> = None;
    while !worker.shutdown.is_draining() {
        let Some(open) = &mut listener else {
            match Listener::connect(worker.options.clone()).await {
                Ok(registered) => {
                    listener = Some(registered);
                    // What was committed before it was registered.
                    look.notify_one();
                }
                Err(error) => pause_deaf(&worker, &error).await,
            }
            continue;
        };
        tokio::select! {
            heard = open.heard() => match heard {
                Ok(Call::At { caller, .. }) if caller == me => {}
                Ok(Call::At { since, endpoints, .. }) => list(&worker, since, endpoints),
                Ok(Call::Look) => look.notify_one(),
                Err(error) => {
                    listener = None;
                    pause_deaf(&worker, &error).await;
                }
            },
            () = worker.shutdown.draining() => {}
        }
    }
    Ok(())
}

async fn pause_deaf<T>(worker: &Worker<T>, error: &sqlx::Error) {
    tracing::warn!(%error, "wake-ups are not heard; polling goes on");
    worker.pause(scout::POLL).await;
}

fn list<T>(worker: &Worker<T>, since: OffsetDateTime, endpoints: Vec<(TenantId, EndpointId)>) {
    for (tenant_id, endpoint_id) in endpoints {
        worker.ready.add_pending(tenant_id, endpoint_id, Some(since));
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn endpoints(count: usize) -> Vec<(TenantId, EndpointId)> {
        (0..count).map(|number| Uuid::from_u128(number as u128)).map(|id| (id.into(), id.into())).collect()
    }

    #[test]
    fn what_was_asked_for_meanwhile_is_told_together() {
        let earlier = OffsetDateTime::UNIX_EPOCH;
        let later = earlier + Duration::from_secs(1);
        for (asked, named) in [
            (vec![], Some(vec![])),
            (vec![(later, 0)], Some(vec![])),
            (vec![(later, 2), (earlier, 1)], Some(vec![(earlier, 2)])),
            (vec![(later, 1), (later, MAX_NAMED)], Some(vec![(later, MAX_NAMED)])),
            (vec![(later, 1), (later, MAX_NAMED + 1)], Some(vec![(later, MAX_NAMED), (later, 1)])),
            (vec![(later, 1), (later, MOST_NAMED)], Some(vec![(later, MAX_NAMED); 10])),
            (vec![(later, 1), (later, MOST_NAMED + 1)], None),
        ] {
            let notifier = Notifier::default();
            for (since, count) in &asked {
                notifier.wake(*since, endpoints(*count));
            }
            let calls = notifier.take();
            let told = named.map(|named| {
                let mut left = endpoints(MOST_NAMED).into_iter();
                let caller = notifier.caller();
                let call = |(since, count)| Call::At {
                    caller,
                    since,
                    endpoints: left.by_ref().take(count).collect(),
                };
                named.into_iter().map(call).collect()
            });
            assert_eq!(calls, told.unwrap_or_else(|| vec![Call::Look]), "{asked:?}");
            assert_eq!(notifier.take(), [], "told once");
        }
    }
}
