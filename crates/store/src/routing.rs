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
    quota::{Limits, Settings},
};
use sqlx::{PgPool, PgTransaction};

pub use self::endpoint::Endpoint;
use crate::{
    rotation::tokens::{self, Move},
    row::{damaged, text},
    tenants::LimitColumns,
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
    /// What the same token hashes to under the current pepper, where it was found by its hash under the pepper before.
    pub newer_token_hash: Option<TokenHash>,
    pub version: i64,
    /// The tenant's. A change of them raises the version.
    pub limits: Limits,
    /// Enabled subscriptions to enabled endpoints; to an approved one only where the application may address it.
    pub rules: Vec<Rule>,
    /// The endpoints that `rules` and `approved` name and that are enabled; for a tenant's own sender all of the tenant's
    /// enabled endpoints.
    pub endpoints: HashMap<EndpointId, Arc<Endpoint>>,
    /// Approved endpoints that the application may address, by name, enabled or not.
    pub approved: HashMap<Name, EndpointId>,
}

impl Routing {
    /// Whether whoever held the token of an earlier copy holds that of this one. A token that was stored anew under the
    /// next pepper in the meantime is still the same.
    pub fn has_token_of(&self, earlier: &Self) -> bool {
        self.token_hash == earlier.token_hash
            || earlier.newer_token_hash.is_some() && self.token_hash == earlier.newer_token_hash
    }

    /// The endpoint, if this application may send to it and to it alone, and it is enabled: an approved one that lists the
    /// application, or for a tenant's own sender any.
    pub fn addressed(&self, id: EndpointId) -> Option<&Arc<Endpoint>> {
        let is_own_sender = self.token_hash.is_none();
        let is_allowed = is_own_sender || self.approved.values().any(|approved| *approved == id);
        self.endpoints.get(&id).filter(|_| is_allowed)
    }
}

/// Routings in memory, by application and by token.
#[derive(Debug)]
pub struct Cache {
    pool: PgPool,
    /// The limits of tenants that have none of their own.
    defaults: Settings,
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
    /// Without limits but those that tenants have of their own.
    pub fn new(pool: PgPool) -> Self {
        Self::with_defaults(pool, Settings::default())
    }

    pub fn with_defaults(pool: PgPool, defaults: Settings) -> Self {
        Self { pool, defaults, known: RwLock::default() }
    }

    /// The limits of tenants that have none of their own.
    pub const fn defaults(&self) -> &Settings {
        &self.defaults
    }

    /// The application that a publish token belongs to; `None` where no application has it (now). `previous_hash` makes
    /// the token's hash under the pepper before, while there is one; it is asked only where the first hash is not known.
    pub async fn by_token(
        &self,
        hash: &TokenHash,
        previous_hash: impl FnOnce() -> Option<TokenHash>,
    ) -> Result<Option<Arc<Routing>>, sqlx::Error> {
        if let Some(found) = self.cached(|known| known.token_owners.get(hash).copied()) {
            return Ok(Some(found));
        }
        // Boxed, since every request of a publisher would have to carry the room for it.
        Box::pin(self.look_up(hash, previous_hash())).await
    }

    async fn look_up(
        &self,
        hash: &TokenHash,
        previous_hash: Option<TokenHash>,
    ) -> Result<Option<Arc<Routing>>, sqlx::Error> {
        let hashes: Vec<Vec<u8>> =
            std::iter::once(*hash).chain(previous_hash).map(|hash| hash.to_vec()).collect();
        let found = sqlx::query!(
            r#"SELECT application_id, token_hash AS "token_hash!" FROM postrider.applications
                WHERE token_hash = ANY($1)"#,
            &hashes
        )
        .fetch_optional(&self.pool)
        .await?;
        let Some(found) = found else { return Ok(None) };
        let id = ApplicationId::from_uuid(found.application_id);
        let mut fresh = load(&self.pool, &self.defaults, id).await?;
        // Between the two looks the token may have been stored anew, or replaced by another.
        let is_current = fresh.as_ref().is_some_and(|fresh| fresh.token_hash == Some(*hash));
        let mut is_found = is_current;
        if let Some(fresh) = &mut fresh
            && !is_current
            && fresh.token_hash.is_some_and(|stored| stored.as_slice() == found.token_hash)
        {
            fresh.newer_token_hash = Some(*hash);
            is_found = true;
        }
        Ok(self.keep(id, fresh).filter(|_| is_found))
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
        let fresh = Box::pin(load(&self.pool, &self.defaults, application_id)).await?;
        Ok(self.keep(application_id, fresh))
    }

    /// Replaces the cached copy of an application.
    fn keep(&self, application_id: ApplicationId, fresh: Option<Routing>) -> Option<Arc<Routing>> {
        let Ok(mut known) = self.known.write() else { return fresh.map(Arc::new) };
        let forgotten = known.forget(application_id);
        let mut fresh = fresh?;
        // A copy that was read without its token at hand.
        if let Some(forgotten) = forgotten.filter(|forgotten| forgotten.token_hash == fresh.token_hash) {
            fresh.newer_token_hash = fresh.newer_token_hash.or(forgotten.newer_token_hash);
        }
        let fresh = Arc::new(fresh);
        known.remember(Arc::clone(&fresh));
        Some(fresh)
    }

    /// Publish tokens that were found by their hash under the pepper before: as they are stored, and as they are to be.
    pub(crate) fn outdated_tokens(&self) -> Vec<(ApplicationId, Move)> {
        let Ok(known) = self.known.read() else { return Vec::new() };
        let moves = known.routings.values().filter_map(|routing| {
            let step = Move { before: routing.token_hash?, after: routing.newer_token_hash? };
            Some((routing.application_id, step))
        });
        moves.take(usize::from(tokens::AT_ONCE)).collect()
    }

    pub(crate) const fn pool(&self) -> &PgPool {
        &self.pool
    }

    fn cached(&self, find: impl FnOnce(&Known) -> Option<ApplicationId>) -> Option<Arc<Routing>> {
        let known = self.known.read().ok()?;
        let id = find(&known)?;
        known.routings.get(&id).cloned()
    }
}

impl Known {
    fn forget(&mut self, application_id: ApplicationId) -> Option<Arc<Routing>> {
        let old = self.routings.remove(&application_id)?;
        for hash in old.token_hash.iter().chain(&old.newer_token_hash) {
            self.token_owners.remove(hash);
        }
        if old.token_hash.is_none() {
            self.system_senders.remove(&old.tenant_id);
        }
        Some(old)
    }

    fn remember(&mut self, routing: Arc<Routing>) {
        if self.routings.len() >= MAX_CACHED_APPLICATIONS {
            *self = Self::default();
        }
        for hash in routing.token_hash.into_iter().chain(routing.newer_token_hash) {
            self.token_owners.insert(hash, routing.application_id);
        }
        if routing.token_hash.is_none() {
            self.system_senders.insert(routing.tenant_id, routing.application_id);
        }
        self.routings.insert(routing.application_id, routing);
    }
}

/// Reads one application and its plan. Several statements, but one snapshot: an edit between them cannot pair an old
/// plan with a new version.
async fn load(
    pool: &PgPool,
    defaults: &Settings,
    application_id: ApplicationId,
) -> Result<Option<Routing>, sqlx::Error> {
    let mut transaction = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let Some(application) = sqlx::query!(
        "SELECT a.tenant_id, t.name AS tenant_name, a.name, a.kind, a.enabled, a.token_hash, a.routing_version,
                t.ingest_rate, t.ingest_burst, t.hourly_events, t.hourly_bytes, t.open_deliveries
           FROM postrider.applications a JOIN postrider.tenants t USING (tenant_id)
          WHERE a.application_id = $1",
        application_id.as_uuid()
    )
    .fetch_optional(&mut *transaction)
    .await?
    else {
        return Ok(None);
    };
    let own = LimitColumns {
        ingest_rate: application.ingest_rate,
        ingest_burst: application.ingest_burst,
        hourly_events: application.hourly_events,
        hourly_bytes: application.hourly_bytes,
        open_deliveries: application.open_deliveries,
    };
    let tenant_id = TenantId::from_uuid(application.tenant_id);
    let rules = load_rules(&mut transaction, application_id).await?;
    let (approved, enabled) = load_approved(&mut transaction, tenant_id, application_id).await?;
    let ids = if application.kind == "system" {
        load_enabled(&mut transaction, tenant_id).await?
    } else {
        rules.iter().map(|rule| rule.endpoint).chain(enabled).collect()
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
        newer_token_hash: None,
        version: application.routing_version,
        limits: own.settings()?.over(defaults),
        rules,
        endpoints,
        approved,
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
            -- Whatever was subscribed before: the registry says who may reach an approved endpoint.
            AND (NOT e.approved OR EXISTS (
                SELECT FROM postrider.endpoint_applications a
                 WHERE a.tenant_id = s.tenant_id AND a.endpoint_id = s.endpoint_id
                   AND a.application_id = s.application_id))
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

/// The approved endpoints that an application may address, by name, and those of them that are enabled.
async fn load_approved(
    transaction: &mut PgTransaction<'_>,
    tenant_id: TenantId,
    application_id: ApplicationId,
) -> Result<(HashMap<Name, EndpointId>, Vec<EndpointId>), sqlx::Error> {
    let rows = sqlx::query!(
        "SELECT e.endpoint_id, e.name, e.enabled
           FROM postrider.endpoint_applications a JOIN postrider.endpoints e USING (tenant_id, endpoint_id)
          WHERE a.tenant_id = $1 AND a.application_id = $2 AND e.approved AND e.deleted_at IS NULL",
        tenant_id.as_uuid(),
        application_id.as_uuid()
    )
    .fetch_all(&mut **transaction)
    .await?;
    let mut approved = HashMap::with_capacity(rows.len());
    let mut enabled = Vec::new();
    for row in rows {
        approved.insert(text("endpoints.name", &row.name)?, row.endpoint_id.into());
        if row.enabled {
            enabled.push(row.endpoint_id.into());
        }
    }
    Ok((approved, enabled))
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
