//! The differences between what is approved and what is declared, and whether they can be made at all.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use anyhow::{anyhow, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use postrider_core::{
    destination::{Destination, Origin, UrlPolicy},
    id::{ApplicationId, EndpointId, TenantId},
    name::Name,
    registry::{Change, Endpoint, Endpoints, Kind, Registry, diff},
    retry::FailureKind,
};
use postrider_engine::transport::Guard;
use postrider_store::{credentials, endpoints, registry};
use sqlx::PgConnection;

use super::{Ground, current};

/// Lookups that are under way at a time, and the longest that one may take. A name that does not resolve in time is left to
/// the check that each request passes.
const LOOKUPS_AT_A_TIME: usize = 8;
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The tenants that the file names.
pub(super) struct Differences {
    pub(super) tenants: Vec<TenantDifferences>,
}

pub(super) struct TenantDifferences {
    pub(super) name: Name,
    pub(super) id: TenantId,
    /// The version that the registry has.
    pub(super) version: i64,
    pub(super) changes: Vec<Change>,
    /// Of the approved endpoints that there are.
    pub(super) ids: BTreeMap<Name, EndpointId>,
    /// Of the applications that the changes name.
    pub(super) applications: HashMap<Name, ApplicationId>,
}

/// Open deliveries of an endpoint that would be deleted or would lead elsewhere.
pub(super) struct Orphans {
    pub(super) tenant: Name,
    pub(super) endpoint: Name,
    pub(super) count: u64,
}

impl Differences {
    /// # Errors
    /// Where the file names what there is not, or an endpoint that is not approved has a declared name.
    pub(super) async fn find(
        ground: &Ground,
        declared: &Registry,
        connection: &mut PgConnection,
    ) -> anyhow::Result<Self> {
        let names: Vec<&Name> = declared.tenants.keys().collect();
        let known: BTreeMap<Name, TenantId> =
            registry::tenants(connection, &names).await?.into_iter().collect();
        let mut tenants = Vec::with_capacity(declared.tenants.len());
        for (name, endpoints) in &declared.tenants {
            let id = *known.get(name).ok_or_else(|| anyhow!("tenants.{name}: there is no such tenant"))?;
            tenants.push(TenantDifferences::find(ground, (name, id), endpoints, connection).await?);
        }
        Ok(Self { tenants })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tenants.iter().all(|tenant| tenant.changes.is_empty())
    }

    /// What would be left without its endpoint.
    pub(super) async fn orphans(&self, connection: &mut PgConnection) -> anyhow::Result<Vec<Orphans>> {
        let leaving = self.tenants.iter().flat_map(|tenant| {
            let changes = tenant.changes.iter().filter(|change| leaves_orphans(change));
            changes.filter_map(move |change| Some((tenant, change, *tenant.ids.get(&change.endpoint)?)))
        });
        let leaving: Vec<_> = leaving.collect();
        if leaving.is_empty() {
            return Ok(Vec::new());
        }
        let asked: Vec<_> = leaving.iter().map(|(tenant, _, id)| (tenant.id, *id)).collect();
        let open: HashMap<_, _> = registry::open_deliveries(connection, &asked).await?.into_iter().collect();
        let orphans = leaving.into_iter().filter_map(|(tenant, change, id)| {
            let count = *open.get(&id)?;
            Some(Orphans { tenant: tenant.name.clone(), endpoint: change.endpoint.clone(), count })
        });
        Ok(orphans.collect())
    }

    /// Asks the guard whether a request would be sent to each host that is new.
    pub(super) async fn check_addresses(&self, ground: &Ground, guard: Guard) -> anyhow::Result<()> {
        let guard = &guard;
        let checks = self.new_urls().map(|(path, endpoint)| async move {
            let origin = origin(ground, endpoint)?;
            match tokio::time::timeout(LOOKUP_TIMEOUT, guard.check(&origin)).await {
                Ok(Err(failure)) if failure.kind == FailureKind::AddressRefused => {
                    Err(anyhow!("{path}.url: {}", failure.detail))
                }
                Ok(Ok(()) | Err(_)) | Err(_) => Ok(()),
            }
        });
        stream::iter(checks).buffered(LOOKUPS_AT_A_TIME).try_collect().await
    }

    /// The URLs that are new, of which each host was looked up.
    pub(super) fn urls(&self) -> BTreeSet<&str> {
        self.new_urls().map(|(_, endpoint)| endpoint.url.as_str()).collect()
    }

    fn new_urls(&self) -> impl Iterator<Item = (String, &Endpoint)> {
        self.tenants.iter().flat_map(|tenant| {
            tenant.changes.iter().filter_map(|change| {
                let endpoint = match &change.kind {
                    Kind::Added(endpoint) => endpoint,
                    Kind::Changed { to, fields, .. } if fields.iter().any(|field| field.name == "url") => to,
                    Kind::Changed { .. } | Kind::Removed => return None,
                };
                Some((tenant.path(&change.endpoint), &**endpoint))
            })
        })
    }
}

impl TenantDifferences {
    async fn find(
        ground: &Ground,
        (name, id): (&Name, TenantId),
        declared: &Endpoints,
        connection: &mut PgConnection,
    ) -> anyhow::Result<Self> {
        let approved = registry::approved(connection, id).await?;
        let mut current = Endpoints::new();
        let mut ids = BTreeMap::new();
        for approved in &approved {
            let endpoint = &approved.endpoint;
            current.insert(endpoint.name.clone(), current::endpoint(&ground.keyring, id, approved)?);
            ids.insert(endpoint.name.clone(), endpoint.id);
        }
        let mut tenant = Self {
            name: name.clone(),
            id,
            version: registry::version(connection, id).await?,
            changes: diff(&current, declared),
            ids,
            applications: HashMap::new(),
        };
        tenant.require_applications(connection).await?;
        tenant.require_credentials(connection).await?;
        tenant.require_names(connection).await?;
        Ok(tenant)
    }

    /// Where the file says something of an endpoint.
    pub(super) fn path(&self, endpoint: &Name) -> String {
        format!("tenants.{}.endpoints.{endpoint}", self.name)
    }

    /// What is added or changed.
    fn written(&self) -> impl Iterator<Item = (&Name, &Endpoint)> {
        self.changes.iter().filter_map(|change| match &change.kind {
            Kind::Added(endpoint) | Kind::Changed { to: endpoint, .. } => {
                Some((&change.endpoint, &**endpoint))
            }
            Kind::Removed => None,
        })
    }

    async fn require_applications(&mut self, connection: &mut PgConnection) -> anyhow::Result<()> {
        let names: BTreeSet<&Name> =
            self.written().flat_map(|(_, endpoint)| &endpoint.applications).collect();
        let names: Vec<&Name> = names.into_iter().collect();
        let known: HashMap<_, _> =
            registry::applications(connection, self.id, &names).await?.into_iter().collect();
        for (name, endpoint) in self.written() {
            if let Some(unknown) = endpoint.applications.iter().find(|name| !known.contains_key(name)) {
                bail!("{}.applications: this tenant has no application `{unknown}`", self.path(name));
            }
        }
        self.applications = known;
        Ok(())
    }

    async fn require_credentials(&self, connection: &mut PgConnection) -> anyhow::Result<()> {
        for (name, endpoint) in self.written() {
            let Some(credential) = &endpoint.credential else { continue };
            if credentials::get_by_name(&mut *connection, self.id, credential).await?.is_none() {
                bail!("{}.credential: this tenant has no credential `{credential}`", self.path(name));
            }
        }
        Ok(())
    }

    async fn require_names(&self, connection: &mut PgConnection) -> anyhow::Result<()> {
        for change in &self.changes {
            let is_new = matches!(change.kind, Kind::Added(_));
            if is_new && endpoints::get_by_name(&mut *connection, self.id, &change.endpoint).await?.is_some()
            {
                bail!(
                    "{}: this tenant has an endpoint of that name which was made through the API; delete that one first, or \
                     choose another name",
                    self.path(&change.endpoint)
                );
            }
        }
        Ok(())
    }
}

/// Tenants with approved endpoints that the file does not name, and how many they have.
pub(super) async fn untouched(
    declared: &Registry,
    connection: &mut PgConnection,
) -> anyhow::Result<Vec<(Name, i64)>> {
    let all = registry::tenants_with_approved(connection).await?;
    Ok(all.into_iter().filter(|(name, _)| !declared.tenants.contains_key(name)).collect())
}

fn leaves_orphans(change: &Change) -> bool {
    match &change.kind {
        Kind::Removed => true,
        Kind::Changed { is_repointed, .. } => *is_repointed,
        Kind::Added(_) => false,
    }
}

fn origin(ground: &Ground, endpoint: &Endpoint) -> anyhow::Result<Origin> {
    let policy = UrlPolicy { allow_query: false, ..ground.url };
    Ok(Destination::parse(&endpoint.url, &policy, &ground.addresses)?.origin().clone())
}
