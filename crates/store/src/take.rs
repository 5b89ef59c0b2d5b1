//! Take: claim pending deliveries of many endpoints in one statement, a few from each.
//!
//! The caller walks endpoints fairly and asks each for no more than it may send; this statement never sorts or counts
//! a whole backlog, so an endpoint with a million waiting deliveries costs the others nothing.

mod named;

use std::time::Duration;

use bytes::Bytes;
use postrider_core::{
    delivery::{InFlight, Run},
    id::{EndpointId, InstanceId, LeaseToken, SigningKeyId, TenantId},
};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

pub use named::{Named, take_named};

use crate::{error::Error, row};

/// How many rows one endpoint may give, and from where to look.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    pub endpoint_id: EndpointId,
    pub limit: u16,
    /// No live row is older: lets the index scan start behind entries that a long transaction keeps from cleanup.
    /// `None` looks from the very beginning.
    pub low_water: Option<OffsetDateTime>,
}

/// The lease under which a batch is claimed.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    pub owner: InstanceId,
    pub token: LeaseToken,
    pub hard_limit: Duration,
}

/// A claimed delivery with all that the request needs, save what the endpoint itself says.
#[derive(Debug, Clone)]
pub struct Claimed {
    pub tenant_id: TenantId,
    pub delivery: InFlight,
    pub endpoint_id: EndpointId,
    /// Version of the endpoint now; a cached copy of another version is out of date.
    pub endpoint_version: i64,
    pub signing_key_id: SigningKeyId,
    pub accepted_at: OffsetDateTime,
    /// Database time of the claim.
    pub claimed_at: OffsetDateTime,
    pub pending_since: OffsetDateTime,
    /// `None` where the event was erased while the delivery was open.
    pub content: Option<Content>,
}

/// What is to be sent.
#[derive(Debug, Clone)]
pub struct Content {
    pub event_type: String,
    pub content_type: String,
    pub trace_id: [u8; 16],
    pub body: Bytes,
}

/// Claims up to the asked number of rows per endpoint, oldest first. Rows that another process is claiming are skipped,
/// and so are disabled endpoints and deliveries past their deadline.
pub async fn take(connection: &mut PgConnection, asks: &[Ask], lease: Lease) -> Result<Vec<Claimed>, Error> {
    let endpoints: Vec<Uuid> = asks.iter().map(|ask| ask.endpoint_id.as_uuid()).collect();
    let limits: Vec<i32> = asks.iter().map(|ask| i32::from(ask.limit)).collect();
    let low_waters: Vec<Option<OffsetDateTime>> = asks.iter().map(|ask| ask.low_water).collect();
    let rows = sqlx::query_file!(
        "src/take/take.sql",
        &endpoints,
        &limits,
        &low_waters as _,
        lease.owner.as_uuid(),
        lease.token.as_uuid(),
        lease.hard_limit.as_secs_f64(),
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|found| {
            let run = Run {
                id: found.delivery_id.into(),
                attempt_number: row::number("attempt_number", found.attempt_number)?,
                tries: row::number("tries", found.tries)?,
                deadline: found.deadline_at,
            };
            Ok(Claimed {
                tenant_id: found.tenant_id.into(),
                delivery: InFlight { run, token: lease.token },
                endpoint_id: found.endpoint_id.into(),
                endpoint_version: found.version,
                signing_key_id: found.signing_key_id.into(),
                accepted_at: found.accepted_at,
                claimed_at: found.claimed_at,
                pending_since: found.pending_since,
                content: content(found.event_type, found.content_type, found.trace_id, found.body)?,
            })
        })
        .collect::<Result<_, sqlx::Error>>()
        .map_err(Error::from)
}

fn content(
    event_type: Option<String>,
    content_type: Option<String>,
    trace_id: Option<Vec<u8>>,
    body: Option<Vec<u8>>,
) -> Result<Option<Content>, sqlx::Error> {
    let (Some(event_type), Some(content_type), Some(trace_id), Some(body)) =
        (event_type, content_type, trace_id, body)
    else {
        return Ok(None);
    };
    let trace_id =
        <[u8; 16]>::try_from(trace_id).map_err(|_| row::damaged("trace_id", &"its length is wrong"))?;
    Ok(Some(Content { event_type, content_type, trace_id, body: body.into() }))
}

/// An endpoint with pending work, and since when its oldest row waits.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    pub tenant_id: TenantId,
    pub endpoint_id: EndpointId,
    pub oldest: OffsetDateTime,
}

/// What one look found.
#[derive(Debug)]
pub struct Found {
    pub endpoints: Vec<Waiting>,
    /// Where to go on looking; `None` at the end.
    pub more_after: Option<EndpointId>,
}

/// Finds the endpoints whose oldest pending work has waited for a grace period, by skipping from one endpoint's first index
/// entry to the next endpoint's, however many rows each has. Looks at `limit` endpoints at most, in the order of their
/// ids, after `after`.
pub async fn find_waiting(
    connection: &mut PgConnection,
    after: Option<EndpointId>,
    grace: Duration,
    limit: u16,
) -> Result<Found, Error> {
    let rows = sqlx::query!(
        r#"
        WITH RECURSIVE waiting AS (
            (SELECT endpoint_id, pending_since, 1 AS found
               FROM postrider.delivery_queue
              WHERE state = 'pending' AND endpoint_id > $1
              ORDER BY endpoint_id, pending_since LIMIT 1)
            UNION ALL
            SELECT next.endpoint_id, next.pending_since, waiting.found + 1
              FROM waiting CROSS JOIN LATERAL (
                   SELECT endpoint_id, pending_since FROM postrider.delivery_queue
                    WHERE state = 'pending' AND endpoint_id > waiting.endpoint_id
                    ORDER BY endpoint_id, pending_since LIMIT 1) AS next
             WHERE waiting.found < $2
        )
        SELECT waiting.endpoint_id AS "endpoint_id!", waiting.pending_since AS "oldest!", e.tenant_id AS "tenant_id?"
          FROM waiting LEFT JOIN postrider.endpoints e ON e.endpoint_id = waiting.endpoint_id AND e.enabled
           AND waiting.pending_since <= now() - make_interval(secs => $3)
         ORDER BY waiting.endpoint_id
        "#,
        after.map_or(Uuid::nil(), EndpointId::as_uuid),
        i32::from(limit),
        grace.as_secs_f64(),
    )
    .fetch_all(connection)
    .await?;
    let is_full = rows.len() == usize::from(limit);
    let more_after = rows.last().filter(|_| is_full).map(|row| row.endpoint_id.into());
    let endpoints = rows
        .into_iter()
        .filter_map(|row| {
            let tenant_id = row.tenant_id?.into();
            Some(Waiting { tenant_id, endpoint_id: row.endpoint_id.into(), oldest: row.oldest })
        })
        .collect();
    Ok(Found { endpoints, more_after })
}
