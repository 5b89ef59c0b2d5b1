//! Deliver: one claimed delivery, from its permit to its result. No transaction is open meanwhile.
//!
//! ```text
//! Leased ──permit, rate token, lease still fresh──► request ──transport──► Exchanged ──core decides──► Concluded ──► settle
//!    └──no token in time, or lease too old──► released
//! ```

use std::{sync::Arc, time::Duration};

use postrider_core::{
    delivery::{DeadLettered, InFlight, Next},
    id::{EndpointId, SigningKeyId, TenantId},
    queue::Receipt,
    retry::{DeadReason, Failure, FailureKind, Outcome, Rules},
    signature::SigningSecret,
};
use postrider_store::{
    failpoint::{self, Point},
    routing::Endpoint,
    settle::{Attempt, Settlement},
    take::{Claimed, Content},
};
use time::OffsetDateTime;

use crate::{
    credentials,
    directory::{self, Target},
    identity::Held,
    limits::{Admission, LONGEST_WAIT_IN_LINE, Permit},
    request,
    settle::{Concluded, Gone},
    transport::{Exchange, Transport},
    worker::{LATEST_START, LONGEST_ATTEMPT, Worker, fraction},
};

/// Turns that a delivery gives the scheduler's other tasks, which costs nothing where there are none.
const TURNS_BEFORE_SENDING: usize = 4;
/// Longest wait for a rate token; then the delivery goes back and leaves its slot to others.
pub(crate) const LONGEST_TOKEN_WAIT: Duration = Duration::from_secs(5);

/// A delivery claimed by this process.
#[derive(Debug)]
#[must_use]
pub struct Leased {
    pub tenant_id: TenantId,
    pub delivery: InFlight,
    pub endpoint_id: EndpointId,
    pub endpoint_version: i64,
    pub signing_key_id: SigningKeyId,
    pub content: Option<Content>,
    pub accepted_at: OffsetDateTime,
    /// Database time of the claim, and the monotonic time just before it was asked for: `now` on the database's clock
    /// is the one plus what has passed since the other.
    pub claimed_at: OffsetDateTime,
    pub claimed: Duration,
    pub held: Held,
    /// Of the message that named it.
    pub receipt: Option<Receipt>,
}

impl Leased {
    /// What was claimed from the table.
    pub fn from_queue(claimed: Claimed, asked_at: Duration, held: Held) -> Self {
        Self {
            tenant_id: claimed.tenant_id,
            delivery: claimed.delivery,
            endpoint_id: claimed.endpoint_id,
            endpoint_version: claimed.endpoint_version,
            signing_key_id: claimed.signing_key_id,
            content: claimed.content,
            accepted_at: claimed.accepted_at,
            claimed_at: claimed.claimed_at,
            claimed: asked_at,
            held,
            receipt: None,
        }
    }
}

/// A request that was made, and the endpoint it went to; `None` where that one is gone.
#[must_use]
struct Exchanged {
    exchange: Exchange,
    endpoint: Option<Arc<Endpoint>>,
}

/// Sends one delivery and hands its result to the settle lane.
pub async fn deliver<T: Transport>(worker: Arc<Worker<T>>, mut leased: Leased, admission: Admission) {
    let life = Arc::clone(leased.held.life());
    let mut permit = None;
    let concluded = tokio::select! {
        biased;
        // The lease is void: others have taken the delivery over, and nothing more may be said about it.
        () = life.ended.cancelled() => return,
        concluded = async {
            let permit = permit.insert(admit(&worker, admission).await?);
            attempt(&worker, &mut leased, permit).await
        } => concluded,
    };
    let settlement = match concluded {
        Some(settlement) => settlement,
        None => Settlement::released(leased.tenant_id, &leased.delivery),
    };
    let gone = is_gone(&settlement).then_some(Gone {
        tenant_id: leased.tenant_id,
        endpoint_id: leased.endpoint_id,
        version: leased.endpoint_version,
    });
    let concluded = Concluded {
        settlement,
        endpoint_id: leased.endpoint_id,
        accepted_ago: Duration::try_from(database_now(&worker, &leased) - leased.accepted_at)
            .unwrap_or_default(),
        claimed: leased.claimed,
        gone,
        held: leased.held,
        receipt: leased.receipt,
    };
    failpoint::reach(Point::DeliverConcluded).await;
    // The permit goes back only when the lane has room: a slow database slows down sending, not memory.
    let _ = worker.settlements.send(concluded).await;
    drop(permit);
    if worker.limits.may_claim_more(leased.endpoint_id) {
        worker.ready.unpark(leased.endpoint_id);
    }
}

/// The same for a delivery whose event has just been accepted: publishers who have their answer go first, since their next
/// events are stored while this one is sent. The other way round a core is idle while a batch is being stored.
pub async fn deliver_in_turn<T: Transport>(worker: Arc<Worker<T>>, leased: Leased, admission: Admission) {
    for _ in 0..TURNS_BEFORE_SENDING {
        tokio::task::yield_now().await;
    }
    deliver(worker, leased, admission).await;
}

/// The permit, or the end of a wait in line for one; `None`: it took too long, or the drain began.
async fn admit<T>(worker: &Worker<T>, admission: Admission) -> Option<Permit> {
    match admission {
        Admission::Permit(permit) => Some(permit),
        Admission::Place(place) => tokio::select! {
            permit = place.permit() => permit,
            () = worker.clock.sleep(LONGEST_WAIT_IN_LINE) => None,
            () = worker.shutdown.draining() => None,
        },
    }
}

/// `None`: no request was made, and the delivery goes back.
async fn attempt<T: Transport>(
    worker: &Arc<Worker<T>>,
    leased: &mut Leased,
    permit: &mut Permit,
) -> Option<Settlement> {
    pay(worker, permit).await?;
    let Some(content) = leased.content.take() else {
        return Some(unsent(leased, DeadReason::BodyGone, "the event was erased"));
    };
    let prepared = prepare(worker, leased).await;
    if prepared.as_ref().is_ok_and(|(target, _)| target.endpoint.is_deleted) {
        return Some(unsent(leased, DeadReason::EndpointDeleted, "the endpoint was deleted"));
    }
    // Looked at last, since everything before may have taken its time.
    let started = worker.clock.monotonic();
    if started.saturating_sub(leased.claimed) > LATEST_START || !leased.held.life().is_alive(started) {
        return None;
    }
    let Exchanged { exchange, endpoint } = match prepared {
        Ok((target, secrets)) => {
            // A 410 is about the version that was asked, which may be newer than the one that was claimed.
            leased.endpoint_version = target.endpoint.version;
            let exchange = exchange(worker, leased, &target, &secrets, content).await;
            Exchanged { exchange, endpoint: Some(Arc::clone(&target.endpoint)) }
        }
        Err(directory::Error::Database(_)) => return None,
        Err(error) => {
            let outcome =
                Outcome::Failed(Failure { kind: FailureKind::Unsendable, detail: error.to_string() });
            let exchange = Exchange { outcome, latency: Duration::ZERO, reconnected: false };
            let endpoints = worker.directory.endpoints(&[leased.endpoint_id]).await.unwrap_or_default();
            Exchanged { exchange, endpoint: endpoints.into_iter().next() }
        }
    };
    failpoint::reach(Point::DeliverAnswered).await;
    let now = worker.clock.monotonic();
    permit.answered(exchange.latency, now);
    if exchange.reconnected {
        metrics::counter!("postrider_reconnected_requests_total").increment(1);
    }
    let database_now = database_now(worker, leased);
    let jitter = fraction(worker.dice.roll(leased.delivery.run.id, leased.delivery.run.attempt_number));
    let rules = endpoint.as_ref().map_or_else(Rules::default, |endpoint| endpoint.rules());
    let next = leased.delivery.conclude(&rules, &exchange.outcome, database_now, jitter);
    let attempt = evidence(&exchange, now.saturating_sub(started), endpoint.as_deref());
    log(leased, endpoint.as_deref(), &attempt, &next);
    Some(Settlement::attempted(leased.tenant_id, &leased.delivery, attempt, next))
}

async fn pay<T>(worker: &Worker<T>, permit: &mut Permit) -> Option<()> {
    let start = worker.clock.monotonic();
    loop {
        let now = worker.clock.monotonic();
        // Those who share the endpoint's limits first: what they refuse is not paid for here.
        let entered = match &worker.limiter {
            Some(limiter) => permit.enter(limiter, now).await,
            None => Ok(()),
        };
        let Err(wait) = entered.and_then(|()| permit.pay(now)) else { return Some(()) };
        if now.saturating_sub(start) + wait > LONGEST_TOKEN_WAIT || worker.shutdown.is_draining() {
            return None;
        }
        worker.clock.sleep(wait).await;
    }
}

/// The endpoint and the keys to sign with: the delivery's own first, then those of a running overlap.
async fn prepare<T>(
    worker: &Worker<T>,
    leased: &Leased,
) -> Result<(Arc<Target>, Vec<Arc<SigningSecret>>), directory::Error> {
    let target = worker.directory.target_of_version(leased.endpoint_id, leased.endpoint_version).await?;
    let mut ids = vec![leased.signing_key_id];
    if let Some((previous, until)) = target.endpoint.overlap
        && database_now(worker, leased) < until
    {
        for id in [target.endpoint.signing_key_id, previous] {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    let mut secrets = Vec::with_capacity(ids.len());
    for id in ids {
        secrets.push(worker.directory.secret(leased.tenant_id, id).await?);
    }
    Ok((target, secrets))
}

/// Sends the request, once the header that the vendor wants to see is there. The wait for it is part of the attempt.
async fn exchange<T: Transport>(
    worker: &Arc<Worker<T>>,
    leased: &Leased,
    target: &Target,
    secrets: &[Arc<SigningSecret>],
    content: Content,
) -> Exchange {
    let (asked, limit) = (worker.clock.monotonic(), target.endpoint.timeout.min(LONGEST_ATTEMPT));
    let presented = match &target.carried {
        Some(carried) => match credentials::present(worker, carried, limit).await {
            Ok(presented) => Some((carried, presented)),
            Err(failure) => return failed(failure, worker.clock.monotonic().saturating_sub(asked)),
        },
        None => None,
    };
    let waited = worker.clock.monotonic().saturating_sub(asked);
    let run = &leased.delivery.run;
    let parts = request::Parts {
        tenant_id: leased.tenant_id,
        delivery_id: run.id,
        attempt_number: run.attempt_number,
        event_type: &content.event_type,
        content_type: &content.content_type,
        trace_id: content.trace_id,
        span_id: worker.dice.roll(run.id, !run.attempt_number).to_be_bytes(),
        body: content.body,
        key_id: leased.signing_key_id,
        secrets,
        presented: presented.as_ref().map(|(_, presented)| presented),
        now: worker.clock.now(),
    };
    let mut outgoing = match request::build(target, parts) {
        Ok(outgoing) => outgoing,
        Err(error) => {
            return failed(Failure { kind: FailureKind::Unsendable, detail: error.to_string() }, waited);
        }
    };
    outgoing.timeout = limit.saturating_sub(waited);
    let mut exchange = worker.transport.send(outgoing).await;
    exchange.latency += waited;
    if let Some((carried, presented)) = presented {
        let success_codes = target.endpoint.success_codes;
        exchange.outcome = credentials::judge(worker, carried, &presented, exchange.outcome, success_codes);
    }
    exchange
}

fn failed(failure: Failure, latency: Duration) -> Exchange {
    Exchange { outcome: Outcome::Failed(failure), latency, reconnected: false }
}

fn evidence(exchange: &Exchange, started_ago: Duration, endpoint: Option<&Endpoint>) -> Attempt {
    let (status, failure) = match &exchange.outcome {
        Outcome::Answered(answer) | Outcome::TokenRefused(answer) => (Some(answer.status), None),
        Outcome::Failed(failure) => (None, Some((failure.kind.as_str(), failure.detail.clone()))),
    };
    let registry_version = endpoint.and_then(|endpoint| endpoint.registry_version);
    Attempt { started_ago, latency: exchange.latency, status, failure, registry_version }
}

/// Ends a delivery that cannot be sent any more, without a request.
fn unsent(leased: &Leased, reason: DeadReason, detail: &str) -> Settlement {
    let run = &leased.delivery.run;
    let next = Next::DeadLettered(DeadLettered { id: run.id, attempt_number: run.attempt_number, reason });
    let failure = Some((FailureKind::Unsendable.as_str(), detail.to_owned()));
    let attempt = Attempt {
        started_ago: Duration::ZERO,
        latency: Duration::ZERO,
        status: None,
        failure,
        registry_version: None,
    };
    Settlement::attempted(leased.tenant_id, &leased.delivery, attempt, next)
}

fn is_gone(settlement: &Settlement) -> bool {
    use postrider_store::settle::Result;
    match &settlement.result {
        Result::Attempted { next: Next::DeadLettered(dead), .. } => dead.reason == DeadReason::EndpointGone,
        Result::Attempted { next: Next::Delivered(_) | Next::Scheduled(_), .. } | Result::Released => false,
    }
}

/// The time on the database's clock: that of the claim, and what has passed since.
fn database_now<T>(worker: &Worker<T>, leased: &Leased) -> OffsetDateTime {
    leased.claimed_at + worker.clock.monotonic().saturating_sub(leased.claimed)
}

/// One line per attempt: what an operator needs, and neither a body nor a secret. Successes are many, so they are only
/// told to those who ask.
fn log(leased: &Leased, endpoint: Option<&Endpoint>, attempt: &Attempt, next: &Next) {
    let run = &leased.delivery.run;
    let latency_ms = u64::try_from(attempt.latency.as_millis()).unwrap_or(u64::MAX);
    let failure = attempt.failure.as_ref().map(|(kind, detail)| format!("{kind}: {detail}"));
    macro_rules! line {
        ($level:ident, $outcome:literal) => {
            tracing::$level!(
                tenant = endpoint.map(|endpoint| &*endpoint.tenant_name),
                tenant_id = %leased.tenant_id,
                endpoint = endpoint.map(|endpoint| &*endpoint.name),
                endpoint_id = %leased.endpoint_id,
                delivery_id = %run.id,
                attempt = run.attempt_number,
                outcome = $outcome,
                status = attempt.status,
                failure,
                latency_ms,
                "attempt ended"
            )
        };
    }
    match next {
        Next::Delivered(_) => line!(debug, "delivered"),
        Next::Scheduled(_) => line!(info, "scheduled"),
        Next::DeadLettered(_) => line!(warn, "dead_lettered"),
    }
}
