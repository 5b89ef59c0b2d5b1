//! Writes the differences, all of them in one transaction.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow, bail};
use postrider_core::{
    credential::Credential,
    id::{ApplicationId, CredentialId, EndpointId, SigningKeyId, TenantId},
    name::Name,
    registry::{Change as Difference, Endpoint, Kind, Registry, chosen, document},
    seal::{Context, Purpose},
    signature::{Algorithm, SigningSecret},
};
use postrider_store::{
    audit::{Action, Actor, By, Change, Target},
    credentials,
    edit::Edit,
    endpoints::{self, Approval, NewEndpoint, Settings},
    failpoint::{self, Point},
    registry::{self, NewVersion},
    signing_keys::NewSigningKey,
};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{
    Ground,
    current::context,
    differences::{Differences, Orphans, TenantDifferences},
};
use crate::random;

pub(super) struct Written {
    pub(super) differences: Differences,
    pub(super) orphans: Vec<Orphans>,
}

/// One tenant in the making.
struct Writer<'a> {
    ground: &'a Ground,
    tenant: &'a TenantDifferences,
    approval: i64,
    credentials: &'a BTreeMap<(TenantId, Name), (CredentialId, Credential)>,
}

/// Finds the differences anew, under the lock that serialises applying, and makes them. `checked` are those whose hosts
/// were looked up.
pub(super) async fn write(
    ground: &Ground,
    declared: &Registry,
    checked: &Differences,
    allow_orphans: bool,
) -> anyhow::Result<Written> {
    let by = By { actor: Actor::CommandLine, address: None };
    let mut edit = Edit::of_operator(&ground.pool, None, by).await?;
    registry::begin_applying(&mut edit).await?;
    let differences = Differences::find(ground, declared, &mut edit).await?;
    if !differences.urls().is_subset(&checked.urls()) {
        bail!("somebody else applied a registry meanwhile; try again");
    }
    // Publishers do not wait for this look, so that a file that is refused costs them nothing. For the one below they do: it
    // mostly finds nothing, since it is for what was accepted in between, but reads as much.
    let mut look = registry::begin_look(&mut edit).await?;
    let orphans = differences.orphans(&mut look).await?;
    look.rollback().await?;
    if !allow_orphans {
        refuse(&orphans)?;
    }
    let credentials = share_credentials(ground, &differences, &mut edit).await?;
    lock(&differences, &mut edit).await?;
    if !allow_orphans {
        refuse(&differences.orphans(&mut edit).await?)?;
    }
    for tenant in differences.tenants.iter().filter(|tenant| !tenant.changes.is_empty()) {
        let approval = tenant.version + 1;
        let writer = Writer { ground, tenant, approval, credentials: &credentials };
        writer.write(&mut edit).await?;
        let endpoints = declared.tenants.get(&tenant.name).context("the tenant is declared")?;
        record(tenant, approval, &document(endpoints), &mut edit).await?;
    }
    failpoint::reach(Point::RegistryWritten).await;
    edit.commit_recorded().await?;
    failpoint::reach(Point::RegistryCommitted).await;
    Ok(Written { differences, orphans })
}

/// # Errors
/// Where there are any.
fn refuse(orphans: &[Orphans]) -> anyhow::Result<()> {
    if orphans.is_empty() {
        return Ok(());
    }
    let shown = orphans.iter().map(|orphans| {
        format!("tenants.{}.endpoints.{} ({})", orphans.tenant, orphans.endpoint, orphans.count)
    });
    let shown: Vec<String> = shown.collect();
    bail!(
        "deliveries are still open to endpoints that would be deleted or lead to another host: {}. Wait for them, or give \
         --allow-orphans",
        shown.join(", ")
    )
}

/// The credentials that the changes name, kept as they are until the end; before any endpoint is locked.
async fn share_credentials(
    ground: &Ground,
    differences: &Differences,
    edit: &mut Edit,
) -> anyhow::Result<BTreeMap<(TenantId, Name), (CredentialId, Credential)>> {
    let mut shared = BTreeMap::new();
    for tenant in &differences.tenants {
        for (path, credential) in tenant.changes.iter().filter_map(|change| match &change.kind {
            Kind::Added(endpoint) | Kind::Changed { to: endpoint, .. } => {
                Some((tenant.path(&change.endpoint), endpoint.credential.clone()?))
            }
            Kind::Removed => None,
        }) {
            let key = (tenant.id, credential);
            if shared.contains_key(&key) {
                continue;
            }
            let found = credentials::share_by_name(edit, tenant.id, &key.1).await?;
            let found = found
                .ok_or_else(|| anyhow!("{path}.credential: this tenant has no credential `{}`", key.1))?;
            let context =
                Context { purpose: Purpose::Credential, tenant: tenant.id, row: found.id.as_uuid() };
            let opened = ground.keyring.open(&context, &found.sealed_value)?;
            shared.insert(key, (found.id, Credential::from_stored(&opened)?));
        }
    }
    Ok(shared)
}

async fn lock(differences: &Differences, edit: &mut Edit) -> anyhow::Result<()> {
    let (mut endpoints, mut applications, mut tenants) = (Vec::new(), Vec::new(), Vec::new());
    for tenant in differences.tenants.iter().filter(|tenant| !tenant.changes.is_empty()) {
        tenants.push(tenant.id);
        applications.extend(tenant.applications.values().copied());
        let touched = tenant.changes.iter().filter_map(|change| tenant.ids.get(&change.endpoint));
        endpoints.extend(touched.map(|id| (tenant.id, *id)));
    }
    Ok(registry::lock(edit, &endpoints, &applications, &tenants).await?)
}

async fn record(
    tenant: &TenantDifferences,
    version: i64,
    document: &str,
    edit: &mut Edit,
) -> anyhow::Result<()> {
    let hash: [u8; 32] = Sha256::digest(document.as_bytes()).into();
    let applied_by = Actor::CommandLine.kind().as_str();
    let new = NewVersion { version, document, document_hash: &hash, applied_by };
    registry::record(edit, tenant.id, new).await?;
    let target = Target::named("registry", format!("version {version}"));
    edit.record_for(Some(tenant.id), &Change::whole(Action::RegistryApplied, target)).await?;
    Ok(())
}

impl Writer<'_> {
    async fn write(&self, edit: &mut Edit) -> anyhow::Result<()> {
        for difference in &self.tenant.changes {
            self.write_one(difference, edit)
                .await
                .with_context(|| format!("{} cannot be written", self.tenant.path(&difference.endpoint)))?;
        }
        Ok(())
    }

    async fn write_one(&self, difference: &Difference, edit: &mut Edit) -> anyhow::Result<()> {
        let name = &difference.endpoint;
        match &difference.kind {
            Kind::Added(endpoint) => {
                let id = EndpointId::from_uuid(Uuid::now_v7());
                self.create(id, name, endpoint, edit).await?;
                self.record(Action::EndpointCreated, (id, name), &chosen(endpoint), edit).await
            }
            Kind::Changed { to, fields, .. } => {
                let id = self.id(name)?;
                let settings = self.settings(id, to)?;
                endpoints::update(edit, self.tenant.id, id, &settings, Some(self.approval(to))).await?;
                registry::set_applications(edit, self.tenant.id, id, &self.applications(to)).await?;
                let fields: Vec<&str> = fields.iter().map(|field| field.name).collect();
                self.record(Action::EndpointChanged, (id, name), &fields, edit).await
            }
            Kind::Removed => {
                let id = self.id(name)?;
                endpoints::delete(edit, self.tenant.id, id).await?;
                self.record(Action::EndpointDeleted, (id, name), &[], edit).await
            }
        }
    }

    async fn create(
        &self,
        id: EndpointId,
        name: &Name,
        endpoint: &Endpoint,
        edit: &mut Edit,
    ) -> anyhow::Result<()> {
        let (algorithm, tenant) = (Algorithm::HmacSha256, self.tenant.id);
        let secret = SigningSecret::generate(algorithm, random::bytes()?);
        let key_id = SigningKeyId::from_uuid(Uuid::now_v7());
        let context = Context { purpose: Purpose::SigningSecret, tenant, row: key_id.as_uuid() };
        let sealed_secret = self.ground.keyring.seal(random::bytes()?, &context, &secret.to_stored());
        let settings = self.settings(id, endpoint)?;
        let new = NewEndpoint {
            id,
            name,
            settings: &settings,
            approval: Some(self.approval(endpoint)),
            key: NewSigningKey { id: key_id, algorithm, sealed_secret: &sealed_secret },
        };
        endpoints::create(edit, tenant, new).await?;
        Ok(registry::set_applications(edit, tenant, id, &self.applications(endpoint)).await?)
    }

    fn settings(&self, id: EndpointId, endpoint: &Endpoint) -> anyhow::Result<Settings> {
        let tenant = self.tenant.id;
        let seal = |purpose, secret: &[u8]| {
            anyhow::Ok(self.ground.keyring.seal(random::bytes()?, &context(purpose, tenant, id), secret))
        };
        let query = endpoint.query.as_ref();
        let sealed_query =
            query.map(|query| seal(Purpose::EndpointQuery, query.reveal().as_bytes())).transpose()?;
        let headers = (!endpoint.headers.is_empty()).then(|| endpoint.headers.to_stored());
        let sealed_headers = headers.map(|headers| seal(Purpose::EndpointHeaders, &headers)).transpose()?;
        Ok(Settings {
            url: endpoint.url.clone(),
            sealed_query,
            method: endpoint.method,
            success_codes: endpoint.success_codes,
            credential_id: self.credential(endpoint)?,
            sealed_headers,
            timeout: endpoint.timeout,
            max_in_flight: endpoint.max_in_flight,
            rate: endpoint.rate,
            retry: endpoint.retry,
        })
    }

    /// # Errors
    /// Where the credential is sent in a header that the endpoint sets itself.
    fn credential(&self, endpoint: &Endpoint) -> anyhow::Result<Option<CredentialId>> {
        let Some(name) = &endpoint.credential else { return Ok(None) };
        let key = (self.tenant.id, name.clone());
        let (id, credential) = self.credentials.get(&key).context("the credential was looked up")?;
        let header = credential.header_name();
        if endpoint.headers.contains(header) {
            bail!("the credential `{name}` is sent in the header `{header}`, which `headers` sets, too");
        }
        Ok(Some(*id))
    }

    fn approval(&self, endpoint: &Endpoint) -> Approval {
        Approval { registry_version: self.approval, allows_query: endpoint.allow_query }
    }

    fn applications(&self, endpoint: &Endpoint) -> Vec<ApplicationId> {
        endpoint.applications.iter().filter_map(|name| self.tenant.applications.get(name).copied()).collect()
    }

    fn id(&self, name: &Name) -> anyhow::Result<EndpointId> {
        self.tenant.ids.get(name).copied().context("the endpoint was there a moment ago")
    }

    async fn record(
        &self,
        action: Action,
        (id, name): (EndpointId, &Name),
        fields: &[&str],
        edit: &mut Edit,
    ) -> anyhow::Result<()> {
        let target = Target::new("endpoint", id, name);
        Ok(edit.record_for(Some(self.tenant.id), &Change { action, target, fields }).await?)
    }
}
