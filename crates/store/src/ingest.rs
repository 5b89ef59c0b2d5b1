//! Ingest: events, their keys and their open deliveries, for many publishers in one statement.
//!
//! Invariant: an item is stored whole or not at all, and only under a plan that is still true when it commits. A bad
//! item never fails its neighbours: each gets an answer of its own.

mod entrance;
mod metered;
mod standing;

use std::time::Duration;

use bytes::Bytes;
use postrider_core::{
    event::{Fingerprint, KeySpace},
    id::{ApplicationId, DeliveryId, EndpointId, EventId, InstanceId, LeaseToken, SigningKeyId},
    name::{EventType, IdempotencyKey},
    queue::{Pointer, Route},
    quota::Excess,
};
use sqlx::{Connection as _, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

pub use self::{
    entrance::{Entrance, NoEntry, Submission},
    metered::insert_metered,
};

use crate::{
    error::Error,
    failpoint::{self, Point},
    outbox::{self, Message},
    routing::Routing,
};

#[derive(Debug)]
pub struct NewEvent {
    pub event_id: EventId,
    pub key: Option<(KeySpace, IdempotencyKey)>,
    pub fingerprint: Fingerprint,
    pub event_type: EventType,
    pub content_type: String,
    pub body: Bytes,
    pub trace_id: [u8; 16],
    pub target: Target,
}

/// Who is to get an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Everyone the application's subscriptions name.
    Plan,
    /// One endpoint.
    Endpoint(EndpointId),
}

/// A durable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    pub event_id: EventId,
    pub deliveries: u32,
    /// The key was used before for the same event; nothing new was stored.
    pub duplicate: bool,
}

/// Why an event was not stored; only of an unknown one it may have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the idempotency key was used for another event")]
    Conflict { event_id: EventId },
    #[error("the credential is no longer valid")]
    Unauthorized,
    #[error("the application is disabled")]
    ApplicationDisabled,
    #[error("the endpoint is unknown or disabled")]
    EndpointUnavailable,
    #[error("the event cannot be stored: PostgreSQL refuses its data")]
    Unstorable,
    #[error("the tenant's quota is used up")]
    OverQuota(Excess),
    #[error("what the tenant has open is being counted")]
    Uncounted,
    #[error("too much work in hand")]
    Overloaded,
    /// Somebody held a lock that storing it needs (on the application's plan, its key or a table) for too long, the
    /// plan or the key changed again and again, or too many others waited for such things.
    #[error("what the event needs in the database is locked or being changed")]
    Contended,
    /// It was not sent to the database.
    #[error("the database cannot be reached")]
    Unavailable,
    /// It was sent, or may have been, and the database did not confirm it: no answer came, or an error that leaves it
    /// open. It may have been stored, and a retry under the same key settles that.
    #[error("the database did not confirm the event")]
    Unknown,
}

/// An item of a batch: an event and its planned deliveries, under the plan of `routing.version`.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    pub routing: &'a Routing,
    pub event: &'a NewEvent,
    pub deliveries: &'a [Planned],
}

#[derive(Debug, Clone, Copy)]
pub struct Planned {
    pub delivery_id: DeliveryId,
    pub endpoint_id: EndpointId,
    pub signing_key_id: SigningKeyId,
    /// From acceptance to the deadline.
    pub max_age: Duration,
    /// Born claimed by this process, with the token; `None`: born pending.
    pub lease: Option<LeaseToken>,
}

/// By whom, and for how long, the deliveries of a batch that carry a token are claimed.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    pub owner: InstanceId,
    pub hard_limit: Duration,
}

/// How the deliveries of a batch get to those who send them.
#[derive(Debug, Clone, Copy)]
pub enum Onward {
    /// Whoever looks into the table finds them, save those that are born claimed.
    Table(Lease),
    /// Messages to the broker name them; none is born claimed.
    Outbox,
}

/// What became of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    New,
    Duplicate {
        event_id: EventId,
        deliveries: u32,
    },
    Conflict {
        event_id: EventId,
    },
    /// The plan is out of date: reload the routing, plan again.
    Stale,
    /// The key is taken, and its owner was not found: it vanished between two looks, or the second failed. Try the item
    /// again.
    KeyTaken,
    /// Its tenant has not enough left.
    OverQuota(Excess),
    /// What its tenant has open is being counted, and nothing is known before.
    Uncounted,
}

/// A committed batch.
#[derive(Debug)]
pub struct Batch {
    /// Database time of the transaction: when its events were accepted.
    pub accepted_at: OffsetDateTime,
    /// In the order of the items.
    pub stored: Vec<Stored>,
}

/// Stores a batch in one transaction. On an error nothing is stored, save that it is not known where the database was
/// lost. Items whose version is stale, or whose key exists, store nothing.
pub async fn insert(
    connection: &mut PgConnection,
    items: &[Item<'_>],
    onward: Onward,
) -> Result<Batch, Error> {
    let batch = match onward {
        Onward::Table(_) => insert_within(connection, items, onward).await?,
        Onward::Outbox => {
            let mut transaction = connection.begin().await?;
            let batch = insert_within(&mut transaction, items, onward).await?;
            failpoint::reach(Point::IngestWritten).await;
            transaction.commit().await?;
            batch
        }
    };
    failpoint::reach(Point::IngestCommitted).await;
    Ok(batch)
}

/// What is written, in a transaction that may be a larger one.
async fn insert_within(
    connection: &mut PgConnection,
    items: &[Item<'_>],
    onward: Onward,
) -> Result<Batch, Error> {
    match onward {
        Onward::Table(lease) => insert_rows(connection, items, lease).await,
        Onward::Outbox => {
            let nobody = Lease { owner: InstanceId::from_uuid(Uuid::nil()), hard_limit: Duration::ZERO };
            let batch = insert_rows(connection, items, nobody).await?;
            outbox::add(connection, &announced(items, &batch.stored)).await?;
            Ok(batch)
        }
    }
}

/// The messages about the deliveries of those items that are new.
fn announced(items: &[Item<'_>], stored: &[Stored]) -> Vec<Message> {
    let new = items.iter().zip(stored).filter(|(_, stored)| **stored == Stored::New);
    let pointers: Vec<Pointer> = new
        .flat_map(|(item, _)| {
            item.deliveries.iter().map(|planned| Pointer {
                tenant_id: item.routing.tenant_id,
                endpoint_id: planned.endpoint_id,
                delivery_id: planned.delivery_id,
                attempt_number: 0,
            })
        })
        .collect();
    outbox::messages(Route::Ready, &pointers, None).collect()
}

async fn insert_rows(
    connection: &mut PgConnection,
    items: &[Item<'_>],
    lease: Lease,
) -> Result<Batch, Error> {
    let events = EventColumns::of(items);
    let deliveries = DeliveryColumns::of(items);
    let rows = sqlx::query_file!(
        "src/ingest/insert.sql",
        &events.places,
        &events.tenants,
        &events.applications,
        &events.ids,
        &events.versions,
        &events.key_spaces as _,
        &events.keys as _,
        &events.fingerprints as _,
        &events.types as _,
        &events.content_types as _,
        &events.bodies as _,
        &events.trace_ids as _,
        &events.delivery_counts,
        &deliveries.places,
        &deliveries.ids,
        &deliveries.endpoints,
        &deliveries.signing_keys,
        &deliveries.lease_tokens as _,
        lease.owner.as_uuid(),
        lease.hard_limit.as_secs_f64(),
        &deliveries.max_ages,
    )
    .fetch_all(connection)
    .await?;
    let mut stored = vec![Stored::Stale; items.len()];
    let mut accepted_at = OffsetDateTime::UNIX_EPOCH;
    for row in rows {
        accepted_at = row.accepted_at;
        if let Some(slot) = usize::try_from(row.place).ok().and_then(|place| stored.get_mut(place)) {
            *slot = if row.is_new { Stored::New } else { Stored::KeyTaken };
        }
    }
    Ok(Batch { accepted_at, stored })
}

/// Those of the applications whose plan somebody has locked at this moment. A transaction of its own, which gives back at its
/// end the locks that it got by asking.
pub async fn locked_plans(
    connection: &mut PgConnection,
    applications: &[ApplicationId],
) -> Result<Vec<ApplicationId>, Error> {
    let ids: Vec<Uuid> = applications.iter().map(|id| id.as_uuid()).collect();
    let locked = sqlx::query_scalar!(
        r#"SELECT application_id AS "application_id!" FROM unnest($1::uuid[]) AS asked (application_id)
            WHERE NOT pg_try_advisory_xact_lock_shared(postrider.plan_lock_key(application_id))"#,
        &ids,
    )
    .fetch_all(connection)
    .await?;
    Ok(locked.into_iter().map(ApplicationId::from_uuid).collect())
}

/// Looks up who owns the keys that were taken; sends nothing where none was. A statement of its own: the insert's snapshot
/// is older than a winner that committed while it waited, and would not show it.
pub async fn resolve_taken_keys(
    connection: &mut PgConnection,
    items: &[Item<'_>],
    stored: &mut [Stored],
) -> Result<(), Error> {
    let open = || {
        items
            .iter()
            .zip(&*stored)
            .zip(0_i32..)
            .filter(|((_, stored), _)| **stored == Stored::KeyTaken)
            .map(|((item, _), place)| (item, place))
    };
    let places: Vec<i32> = open().map(|(_, place)| place).collect();
    if places.is_empty() {
        return Ok(());
    }
    let applications: Vec<Uuid> = open().map(|(item, _)| item.routing.application_id.as_uuid()).collect();
    let (key_spaces, keys): (Vec<i16>, Vec<&str>) = open()
        .filter_map(|(item, _)| item.event.key.as_ref())
        .map(|(space, key)| (space.number(), key.as_str()))
        .unzip();
    let rows = sqlx::query!(
        r#"SELECT asked.place AS "place!", k.fingerprint, k.event_id, k.delivery_count
             FROM unnest($1::int[], $2::uuid[], $3::smallint[], $4::text[])
                      AS asked (place, application_id, key_space, idempotency_key)
            -- One look into the index per key: a plain join is hashed while the table is young, and reads all of it.
            CROSS JOIN LATERAL (
                  SELECT fingerprint, event_id, delivery_count FROM postrider.idempotency_keys
                   WHERE application_id = asked.application_id AND key_space = asked.key_space
                     AND idempotency_key = asked.idempotency_key
                   LIMIT 1) AS k"#,
        &places,
        &applications,
        &key_spaces,
        &keys as _,
    )
    .fetch_all(connection)
    .await?;
    for row in rows {
        let place = usize::try_from(row.place).unwrap_or(usize::MAX);
        let (Some(item), Some(slot)) = (items.get(place), stored.get_mut(place)) else { continue };
        let event_id = EventId::from_uuid(row.event_id);
        *slot = if row.fingerprint == item.event.fingerprint.as_bytes() {
            Stored::Duplicate { event_id, deliveries: u32::try_from(row.delivery_count).unwrap_or_default() }
        } else {
            Stored::Conflict { event_id }
        };
    }
    Ok(())
}

/// One array per column: what `unnest` takes.
struct EventColumns<'a> {
    places: Vec<i32>,
    tenants: Vec<Uuid>,
    applications: Vec<Uuid>,
    ids: Vec<Uuid>,
    versions: Vec<i64>,
    key_spaces: Vec<Option<i16>>,
    keys: Vec<Option<&'a str>>,
    fingerprints: Vec<&'a [u8]>,
    types: Vec<&'a str>,
    content_types: Vec<&'a str>,
    bodies: Vec<&'a [u8]>,
    trace_ids: Vec<&'a [u8]>,
    delivery_counts: Vec<i32>,
}

impl<'a> EventColumns<'a> {
    fn of(items: &'a [Item<'a>]) -> Self {
        let events = || items.iter().map(|item| item.event);
        let routings = || items.iter().map(|item| item.routing);
        Self {
            places: (0..).take(items.len()).collect(),
            tenants: routings().map(|routing| routing.tenant_id.as_uuid()).collect(),
            applications: routings().map(|routing| routing.application_id.as_uuid()).collect(),
            ids: events().map(|event| event.event_id.as_uuid()).collect(),
            versions: routings().map(|routing| routing.version).collect(),
            key_spaces: events().map(|event| event.key.as_ref().map(|(space, _)| space.number())).collect(),
            keys: events().map(|event| event.key.as_ref().map(|(_, key)| key.as_str())).collect(),
            fingerprints: events().map(|event| event.fingerprint.as_bytes().as_slice()).collect(),
            types: events().map(|event| event.event_type.as_str()).collect(),
            content_types: events().map(|event| event.content_type.as_str()).collect(),
            bodies: events().map(|event| &*event.body).collect(),
            trace_ids: events().map(|event| event.trace_id.as_slice()).collect(),
            delivery_counts: items
                .iter()
                .map(|item| i32::try_from(item.deliveries.len()).unwrap_or(i32::MAX))
                .collect(),
        }
    }
}

#[derive(Default)]
struct DeliveryColumns {
    places: Vec<i32>,
    ids: Vec<Uuid>,
    endpoints: Vec<Uuid>,
    signing_keys: Vec<Uuid>,
    lease_tokens: Vec<Option<Uuid>>,
    max_ages: Vec<f64>,
}

impl DeliveryColumns {
    fn of(items: &[Item<'_>]) -> Self {
        let mut columns = Self::default();
        for (item, place) in items.iter().zip(0_i32..) {
            for planned in item.deliveries {
                columns.places.push(place);
                columns.ids.push(planned.delivery_id.as_uuid());
                columns.endpoints.push(planned.endpoint_id.as_uuid());
                columns.signing_keys.push(planned.signing_key_id.as_uuid());
                columns.lease_tokens.push(planned.lease.map(LeaseToken::as_uuid));
                columns.max_ages.push(planned.max_age.as_secs_f64());
            }
        }
        columns
    }
}
