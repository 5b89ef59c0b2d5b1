//! Who may publish, and who gets what: one application with its plan, cached.
//!
//! A cached copy is only a guess. Ingest proves it inside its transaction by comparing `routing_version`; whoever finds
//! it stale reloads it and looks again at everything the copy decided, the caller's token included.

mod endpoint;

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
};

use postrider_core::{
    id::{ApplicationId, EndpointId, TenantId},
    name::{EventTypePattern, Name},
    plan::Rule,
};
use sqlx::{PgPool, PgTransaction};

pub use self::endpoint::Endpoint;
use crate::row::{damaged, text};

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

/// Reads one application and its plan. Several statements, but one snapshot: an edit between them cannot pair an old
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
    let rules = load_rules(&mut transaction, application_id).await?;
    let ids = if application.kind == "system" {
        load_enabled(&mut transaction, tenant_id).await?
    } else {
        rules.iter().map(|rule| rule.endpoint).collect()
    };
    let endpoints = endpoint::select(&mut *transaction, &ids).await?;
    let endpoints =
        endpoints.into_iter().map(|endpoint| (endpoint.endpoint_id, Arc::new(endpoint))).collect();
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

async fn load_enabled(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
) -> Result<Vec<EndpointId>, sqlx::Error> {
    let ids = sqlx::query_scalar!(
        "SELECT endpoint_id FROM postrider.endpoints WHERE tenant_id = $1 AND enabled",
        tenant_id.as_uuid()
    )
    .fetch_all(&mut **transaction)
    .await?;
    Ok(ids.into_iter().map(EndpointId::from_uuid).collect())
}

/// Newest copies of endpoints, for work that was claimed from the queue. Unknown ids are left out.
pub async fn load_endpoints(pool: &PgPool, ids: &[EndpointId]) -> Result<Vec<Endpoint>, sqlx::Error> {
    endpoint::select(pool, ids).await
}
