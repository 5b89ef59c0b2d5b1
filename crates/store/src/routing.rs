//! Who may publish, and who gets what: one application with its plan, cached.
//!
//! A cached copy is only a guess. Ingest proves it inside its transaction by comparing `routing_version`; whoever finds
//! it stale reloads it and looks again at everything the copy decided, the caller's token included.

use std::{
    collections::HashMap,
    num::{NonZeroU16, NonZeroU32},
    sync::{Arc, RwLock},
    time::Duration,
};

use postrider_core::{
    id::{ApplicationId, EndpointId, SigningKeyId, TenantId},
    name::{EventTypePattern, Name},
    plan::Rule,
    retry,
};
use sqlx::{PgPool, PgTransaction};
use time::OffsetDateTime;

use crate::{
    endpoint_row::EndpointRow,
    row::{damaged, text},
};

/// Applications kept in memory; beyond that the cache starts afresh, which costs one query per application in use.
const MAX_CACHED_APPLICATIONS: usize = 10_000;

/// A keyed hash of a publish token.
pub type TokenHash = [u8; 32];

/// An application as ingest sees it. Immutable: a change makes a new one with a higher version.
#[derive(Debug)]
pub struct Routing {
    pub tenant_id: TenantId,
    pub tenant_name: Name,
    pub application_id: ApplicationId,
    pub application_name: Name,
    pub enabled: bool,
    /// `None` for a tenant's own sender of test events.
    pub token_hash: Option<TokenHash>,
    pub version: i64,
    /// Enabled subscriptions to enabled endpoints.
    pub rules: Vec<Rule>,
    /// The endpoints that `rules` name; for a tenant's own sender all of the tenant's enabled endpoints.
    pub endpoints: HashMap<EndpointId, Arc<Endpoint>>,
}

/// An endpoint as delivery sees it.
#[derive(Debug, Clone)]
pub struct Endpoint {
    pub tenant_id: TenantId,
    pub endpoint_id: EndpointId,
    /// Rises with every change; two copies with one version are the same.
    pub version: i64,
    pub url: String,
    pub signing_key_id: SigningKeyId,
    /// The key before the last rotation, and until when requests carry its signature too.
    pub overlap: Option<(SigningKeyId, OffsetDateTime)>,
    pub sealed_headers: Option<Vec<u8>>,
    /// For one whole attempt, from looking up the name to the end of the answer.
    pub timeout: Duration,
    pub max_in_flight: NonZeroU16,
    pub rate: Option<Rate>,
    pub retry: retry::Policy,
}

/// Requests per second, and how many may come at once after a pause.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    pub burst: NonZeroU32,
}

/// Routings in memory, by application and by token.
#[derive(Debug)]
pub struct Cache {
    pool: PgPool,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    routings: HashMap<ApplicationId, Arc<Routing>>,
    token_owners: HashMap<TokenHash, ApplicationId>,
    /// The tenant's own sender of test events.
    system_senders: HashMap<TenantId, ApplicationId>,
}

impl Cache {
    pub fn new(pool: PgPool) -> Self {
        Self { pool, known: RwLock::default() }
    }

    /// The application that a publish token belongs to; `None` where no application has it (now).
    pub async fn by_token(&self, hash: &TokenHash) -> Result<Option<Arc<Routing>>, sqlx::Error> {
        if let Some(found) = self.cached(|known| known.token_owners.get(hash).copied()) {
            return Ok(Some(found));
        }
        let id = sqlx::query_scalar!(
            "SELECT application_id FROM postrider.applications WHERE token_hash = $1",
            hash.as_slice()
        )
        .fetch_optional(&self.pool)
        .await?;
        match id {
            Some(id) => self.reload(ApplicationId::from_uuid(id)).await,
            None => Ok(None),
        }
    }

    /// The tenant's own sender of test events.
    pub async fn system(&self, tenant_id: TenantId) -> Result<Option<Arc<Routing>>, sqlx::Error> {
        if let Some(found) = self.cached(|known| known.system_senders.get(&tenant_id).copied()) {
            return Ok(Some(found));
        }
        let id = sqlx::query_scalar!(
            "SELECT application_id FROM postrider.applications WHERE tenant_id = $1 AND kind = 'system'",
            tenant_id.as_uuid()
        )
        .fetch_optional(&self.pool)
        .await?;
        match id {
            Some(id) => self.reload(ApplicationId::from_uuid(id)).await,
            None => Ok(None),
        }
    }

    /// Reads an application anew, in one snapshot, and replaces the cached copy.
    pub async fn reload(&self, application_id: ApplicationId) -> Result<Option<Arc<Routing>>, sqlx::Error> {
        let fresh = load(&self.pool, application_id).await?.map(Arc::new);
        let Ok(mut known) = self.known.write() else { return Ok(fresh) };
        known.forget(application_id);
        if let Some(routing) = &fresh {
            known.remember(Arc::clone(routing));
        }
        Ok(fresh)
    }

    fn cached(&self, find: impl FnOnce(&Known) -> Option<ApplicationId>) -> Option<Arc<Routing>> {
        let known = self.known.read().ok()?;
        let id = find(&known)?;
        known.routings.get(&id).cloned()
    }
}

impl Known {
    fn forget(&mut self, application_id: ApplicationId) {
        if let Some(old) = self.routings.remove(&application_id) {
            match old.token_hash {
                Some(hash) => self.token_owners.remove(&hash),
                None => self.system_senders.remove(&old.tenant_id),
            };
        }
    }

    fn remember(&mut self, routing: Arc<Routing>) {
        if self.routings.len() >= MAX_CACHED_APPLICATIONS {
            *self = Self::default();
        }
        match routing.token_hash {
            Some(hash) => self.token_owners.insert(hash, routing.application_id),
            None => self.system_senders.insert(routing.tenant_id, routing.application_id),
        };
        self.routings.insert(routing.application_id, routing);
    }
}

/// Reads one application and its plan. Three statements, but one snapshot: an edit between them cannot pair an old
/// plan with a new version.
async fn load(pool: &PgPool, application_id: ApplicationId) -> Result<Option<Routing>, sqlx::Error> {
    let mut transaction = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let Some(application) = sqlx::query!(
        "SELECT a.tenant_id, t.name AS tenant_name, a.name, a.kind, a.enabled, a.token_hash, a.routing_version
           FROM postrider.applications a JOIN postrider.tenants t USING (tenant_id)
          WHERE a.application_id = $1",
        application_id.as_uuid()
    )
    .fetch_optional(&mut *transaction)
    .await?
    else {
        return Ok(None);
    };
    let tenant_id = TenantId::from_uuid(application.tenant_id);
    let is_system = application.kind == "system";
    let rows = sqlx::query_as!(
        EndpointRow,
        "SELECT endpoint_id, tenant_id, version, url, signing_key_id, previous_signing_key_id, overlap_until,
                sealed_headers, timeout_ms, max_in_flight, rate_per_second, rate_burst, max_attempts,
                max_age_seconds, initial_delay_ms, max_delay_ms
           FROM postrider.endpoints
          WHERE tenant_id = $1 AND enabled
            AND ($3 OR endpoint_id IN (SELECT endpoint_id FROM postrider.subscriptions
                                        WHERE application_id = $2 AND enabled))",
        tenant_id.as_uuid(),
        application_id.as_uuid(),
        is_system,
    )
    .fetch_all(&mut *transaction)
    .await?;
    let rules = load_rules(&mut transaction, application_id).await?;
    let endpoints = rows
        .into_iter()
        .map(|row| Endpoint::try_from(row).map(|endpoint| (endpoint.endpoint_id, Arc::new(endpoint))))
        .collect::<Result<_, sqlx::Error>>()?;
    let token_hash = match application.token_hash {
        Some(bytes) => {
            Some(TokenHash::try_from(bytes).map_err(|_| damaged("token_hash", &"its length is wrong"))?)
        }
        None => None,
    };
    Ok(Some(Routing {
        tenant_id,
        tenant_name: text("name", &application.tenant_name)?,
        application_id,
        application_name: text("name", &application.name)?,
        enabled: application.enabled,
        token_hash,
        version: application.routing_version,
        rules,
        endpoints,
    }))
}

async fn load_rules(
    transaction: &mut PgTransaction<'_>,
    application_id: ApplicationId,
) -> Result<Vec<Rule>, sqlx::Error> {
    let subscriptions = sqlx::query!(
        "SELECT s.endpoint_id, s.event_types
           FROM postrider.subscriptions s JOIN postrider.endpoints e USING (tenant_id, endpoint_id)
          WHERE s.application_id = $1 AND s.enabled AND e.enabled
          ORDER BY s.subscription_id",
        application_id.as_uuid()
    )
    .fetch_all(&mut **transaction)
    .await?;
    subscriptions
        .into_iter()
        .map(|row| {
            let patterns = row.event_types.iter().map(|pattern| text("event_types", pattern));
            Ok(Rule {
                patterns: patterns.collect::<Result<Vec<EventTypePattern>, _>>()?,
                endpoint: row.endpoint_id.into(),
            })
        })
        .collect()
}

/// Newest copies of endpoints, for work that was claimed from the queue. Unknown ids are left out.
pub async fn load_endpoints(pool: &PgPool, ids: &[EndpointId]) -> Result<Vec<Endpoint>, sqlx::Error> {
    let ids: Vec<uuid::Uuid> = ids.iter().map(|id| id.as_uuid()).collect();
    let rows = sqlx::query_as!(
        EndpointRow,
        "SELECT endpoint_id, tenant_id, version, url, signing_key_id, previous_signing_key_id, overlap_until,
                sealed_headers, timeout_ms, max_in_flight, rate_per_second, rate_burst, max_attempts,
                max_age_seconds, initial_delay_ms, max_delay_ms
           FROM postrider.endpoints WHERE endpoint_id = ANY($1)",
        &ids
    )
    .fetch_all(pool)
    .await?;
    rows.into_iter().map(Endpoint::try_from).collect()
}
