//! Endpoints of a scenario.

use std::{
    num::{NonZeroU16, NonZeroU32},
    time::Duration,
};

use postrider_core::{
    id::{ApplicationId, CredentialId, EndpointId, SigningKeyId},
    method::Method,
    name::Name,
    retry::Policy,
    seal::{Context, NONCE_LENGTH, Purpose},
    signature::{Algorithm, SigningSecret},
};
use postrider_store::{
    edit,
    endpoints::{self, Approval, DisabledReason, Rate, Settings},
    registry,
    signing_keys::NewSigningKey,
};
use uuid::Uuid;

use super::{Application, Tenant, keyring, parsed, random};

/// An endpoint that exists, and the secret its owner was shown.
#[derive(Debug, Clone)]
pub struct Endpoint {
    tenant: Tenant,
    pub id: EndpointId,
    pub name: Name,
    pub signing_key_id: SigningKeyId,
    pub secret: SigningSecret,
}

/// An endpoint in the making: ten seconds per request, ten at a time, no rate limit, the default retries.
#[derive(Debug)]
pub struct NewEndpoint<'t> {
    tenant: &'t Tenant,
    name: Name,
    algorithm: Algorithm,
    settings: Settings,
    /// Who may address it, where the registry declares it.
    approved_for: Option<Vec<ApplicationId>>,
    query: Option<String>,
}

impl<'t> NewEndpoint<'t> {
    pub(super) fn new(tenant: &'t Tenant, name: &str, url: &str) -> Self {
        let settings = Settings {
            timeout: Duration::from_secs(10),
            max_in_flight: NonZeroU16::new(10).expect("not zero"),
            ..Settings::new(url.to_owned())
        };
        let (name, algorithm) = (parsed(name), Algorithm::HmacSha256);
        Self { tenant, name, algorithm, settings, approved_for: None, query: None }
    }

    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    #[must_use]
    pub fn max_in_flight(mut self, requests: u16) -> Self {
        self.settings.max_in_flight = NonZeroU16::new(requests).expect("at least one request at a time");
        self
    }

    #[must_use]
    pub fn rate(mut self, per_second: f64, burst: u32) -> Self {
        let burst = NonZeroU32::new(burst).expect("a burst of at least one");
        self.settings.rate = Some(Rate { per_second, burst });
        self
    }

    #[must_use]
    pub fn retry(mut self, policy: Policy) -> Self {
        self.settings.retry = policy;
        self
    }

    #[must_use]
    pub fn method(mut self, method: Method) -> Self {
        self.settings.method = method;
        self
    }

    /// As the registry writes them: `200-299,409`.
    #[must_use]
    pub fn success_codes(mut self, codes: &str) -> Self {
        self.settings.success_codes = parsed(codes);
        self
    }

    /// It is declared by version 1 of the registry, and these applications may address it.
    #[must_use]
    pub fn approved_for(mut self, applications: &[&Application]) -> Self {
        self.approved_for = Some(applications.iter().map(|application| application.id).collect());
        self
    }

    /// Its URL has a query, which only an approved endpoint's may.
    #[must_use]
    pub fn query(mut self, query: &str) -> Self {
        self.query = Some(query.to_owned());
        self
    }

    /// Its requests carry a credential of the tenant's.
    #[must_use]
    pub fn carries(mut self, credential: CredentialId) -> Self {
        self.settings.credential_id = Some(credential);
        self
    }

    #[must_use]
    pub fn signs_with(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    pub async fn create(mut self) -> Endpoint {
        let tenant = self.tenant;
        let id = EndpointId::from_uuid(Uuid::now_v7());
        let signing_key_id = SigningKeyId::from_uuid(Uuid::now_v7());
        let secret = SigningSecret::generate(self.algorithm, random());
        let sealed_secret = seal(tenant, signing_key_id, &secret);
        let key =
            NewSigningKey { id: signing_key_id, algorithm: self.algorithm, sealed_secret: &sealed_secret };
        self.settings.sealed_query = self.query.as_ref().map(|query| {
            let context = Context { purpose: Purpose::EndpointQuery, tenant: tenant.id, row: id.as_uuid() };
            keyring().seal(nonce(), &context, query.as_bytes())
        });
        let allows_query = self.query.is_some();
        let approval = self.approved_for.as_ref().map(|_| Approval { registry_version: 1, allows_query });
        let new = endpoints::NewEndpoint { id, name: &self.name, settings: &self.settings, approval, key };
        let mut transaction = edit::begin(&tenant.pool).await.expect("a transaction begins");
        endpoints::create(&mut transaction, tenant.id, new).await.expect("the endpoint's name is free");
        if let Some(applications) = &self.approved_for {
            let listed = registry::set_applications(&mut transaction, tenant.id, id, applications).await;
            listed.expect("the applications exist");
        }
        transaction.commit().await.expect("the endpoint is committed");
        Endpoint { tenant: tenant.clone(), id, name: self.name, signing_key_id, secret }
    }
}

impl Endpoint {
    /// Deletes the endpoint as a person would.
    pub async fn delete(&self) {
        let mut transaction = edit::begin(&self.tenant.pool).await.expect("a transaction begins");
        endpoints::delete(&mut transaction, self.tenant.id, self.id).await.expect("the endpoint exists");
        transaction.commit().await.expect("the deletion is committed");
    }

    /// Disables the endpoint as a person would, or enables it.
    pub async fn set_enabled(&self, is_enabled: bool) {
        let reason = (!is_enabled).then_some(DisabledReason::Requested);
        let mut transaction = edit::begin(&self.tenant.pool).await.expect("a transaction begins");
        let changed = endpoints::set_disabled(&mut transaction, self.tenant.id, self.id, reason).await;
        changed.expect("the endpoint exists");
        transaction.commit().await.expect("the change is committed");
    }

    /// Gives the endpoint a new secret; requests are signed under both for the time of the overlap.
    pub async fn rotate(&mut self, overlap_seconds: u32) {
        let (id, secret) = (
            SigningKeyId::from_uuid(Uuid::now_v7()),
            SigningSecret::generate(self.secret.algorithm(), random()),
        );
        let sealed_secret = seal(&self.tenant, id, &secret);
        let key = NewSigningKey { id, algorithm: secret.algorithm(), sealed_secret: &sealed_secret };
        let mut transaction = edit::begin(&self.tenant.pool).await.expect("a transaction begins");
        let rotated =
            endpoints::rotate_secret(&mut transaction, self.tenant.id, self.id, key, overlap_seconds).await;
        rotated.expect("the endpoint exists");
        transaction.commit().await.expect("the change is committed");
        (self.signing_key_id, self.secret) = (id, secret);
    }
}

fn seal(tenant: &Tenant, id: SigningKeyId, secret: &SigningSecret) -> Vec<u8> {
    let context = Context { purpose: Purpose::SigningSecret, tenant: tenant.id, row: id.as_uuid() };
    keyring().seal(nonce(), &context, &secret.to_stored())
}

fn nonce() -> [u8; NONCE_LENGTH] {
    let [nonce @ .., _, _, _, _] = Uuid::new_v4().into_bytes();
    nonce
}
