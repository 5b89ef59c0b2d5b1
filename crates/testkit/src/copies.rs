//! Tens of thousands of open deliveries within seconds: copies of the few events that a scenario, or a process, has stored.
//!
//! Invariant: a copy is what the product writes of an event like the first one, with its deliveries and their attempts as
//! these stand. It differs in its ids alone.

use postrider_core::id::EventId;
use sqlx::PgPool;
use uuid::Uuid;

/// A copy's id keeps the time and the version of the first one's. Its last 16 bits are zero: the deliveries are numbered
/// there.
const COPY: &str = "
    WITH copied AS MATERIALIZED (
        SELECT event_id, (left(event_id::text, 15) || left(chance, 3) || '-8' || substr(chance, 4, 3) || '-'
                          || substr(chance, 7, 8) || '0000')::uuid AS copy_id
          FROM postrider.events CROSS JOIN generate_series(2, $1) AS copy
         CROSS JOIN LATERAL md5(event_id::text || copy) AS chance
    ), copied_events AS (
        INSERT INTO postrider.events (tenant_id, event_id, application_id, event_type, content_type, body, trace_id,
               delivery_count, accepted_at)
        SELECT tenant_id, copy_id, application_id, event_type, content_type, body, trace_id, delivery_count, accepted_at
          FROM copied JOIN postrider.events USING (event_id)
    ), copied_deliveries AS (
        INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id,
               signing_key_id, accepted_at, deadline_at, state, due_at, pending_since, attempt_number, tries)
        SELECT tenant_id, (left(copy_id::text, 32) || right(delivery_id::text, 4))::uuid, copy_id, application_id,
               endpoint_id, signing_key_id, accepted_at, deadline_at, state, due_at, pending_since, attempt_number, tries
          FROM copied JOIN postrider.delivery_queue USING (event_id)
    ), copied_attempts AS (
        INSERT INTO postrider.attempts (tenant_id, delivery_id, attempt_number, outcome, started_at, ended_at,
               latency_ms, status_code, failure, detail)
        SELECT a.tenant_id, (left(copy_id::text, 32) || right(a.delivery_id::text, 4))::uuid, a.attempt_number,
               a.outcome, a.started_at, a.ended_at, a.latency_ms, a.status_code, a.failure, a.detail
          FROM copied JOIN postrider.delivery_queue q USING (event_id)
          JOIN postrider.attempts a ON a.tenant_id = q.tenant_id AND a.delivery_id = q.delivery_id
    )
    SELECT event_id, copy_id FROM copied";

/// One more event.
#[derive(Debug, Clone, Copy)]
pub struct Copied {
    pub of: EventId,
    pub event_id: EventId,
}

/// Makes `times` of each event there is, that one included. Its deliveries are open, and none is in flight.
pub async fn multiply(pool: &PgPool, times: i32) -> Vec<Copied> {
    let copied: Vec<(Uuid, Uuid)> =
        sqlx::query_as(COPY).bind(times).fetch_all(pool).await.expect("they are copied");
    let copied = copied.into_iter();
    copied.map(|(of, id)| Copied { of: EventId::from_uuid(of), event_id: EventId::from_uuid(id) }).collect()
}
