//! What delivery knows about endpoints and keys: parsed, opened and cached, so that the hot path neither parses URLs nor
//! decrypts. Copies are told apart by the endpoint's version; keys never change.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use postrider_core::{
    address,
    credential::{Credential, Refusal},
    destination::{Destination, UrlPolicy},
    header::CustomHeaders,
    id::{CredentialId, EndpointId, SigningKeyId, TenantId},
    seal::{self, Context, Keyring, Purpose},
    signature::SigningSecret,
};
use postrider_store::{
    credentials,
    routing::{self, Endpoint},
    signing_keys,
};
use sqlx::PgPool;
use zeroize::Zeroizing;

use crate::credentials::{Carried, Client};

/// Entries kept in each cache; beyond that it starts afresh.
const MAX_CACHED: usize = 20_000;

/// An endpoint ready to be sent to.
#[derive(Debug)]
pub struct Target {
    pub endpoint: Arc<Endpoint>,
    pub destination: Arc<Destination>,
    pub headers: CustomHeaders,
    /// What the endpoint's credential adds.
    pub carried: Option<Carried>,
}

/// Why an endpoint or a key cannot be used as it stands in the database. The texts hold no secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the endpoint's URL is no longer allowed: {0}")]
    Url(#[from] postrider_core::destination::Refusal),
    #[error("the endpoint's headers cannot be used: {0}")]
    Headers(#[from] postrider_core::header::Refusal),
    #[error("a secret cannot be opened: {0}; check POSTRIDER_ENCRYPTION_KEY")]
    Sealed(#[from] seal::Error),
    #[error("a signing key cannot be used: {0}")]
    Key(#[from] postrider_core::signature::Error),
    #[error("the signing key is gone")]
    KeyMissing,
    #[error("the endpoint's credential is gone")]
    CredentialMissing,
    #[error("the endpoint's credential cannot be used: {0}")]
    Credential(#[from] Refusal),
    /// The refusal's words would show a part of the credential.
    #[error("the token URL of the endpoint's credential is no longer allowed")]
    TokenUrl,
    #[error("the endpoint sets the header `{0}`, and so does its credential; remove one of them")]
    SetTwice(http::HeaderName),
    #[error("the database did not answer")]
    Database(#[from] sqlx::Error),
}

/// What makes sense of the rows.
#[derive(Debug)]
pub struct Settings {
    pub keyring: Arc<Keyring>,
    pub url_policy: UrlPolicy,
    pub address_policy: address::Policy,
}

/// The caches.
#[derive(Debug)]
pub struct Directory {
    pool: PgPool,
    settings: Settings,
    endpoints: RwLock<HashMap<EndpointId, Arc<Endpoint>>>,
    targets: RwLock<HashMap<EndpointId, Arc<Target>>>,
    secrets: RwLock<HashMap<SigningKeyId, Arc<SigningSecret>>>,
}

impl Directory {
    pub fn new(pool: PgPool, settings: Settings) -> Self {
        Self {
            pool,
            settings,
            endpoints: RwLock::default(),
            targets: RwLock::default(),
            secrets: RwLock::default(),
        }
    }

    /// Copies of endpoints, of whatever version is at hand; those not at hand are read. Enough to ask for permits.
    pub async fn endpoints(&self, ids: &[EndpointId]) -> Result<Vec<Arc<Endpoint>>, Error> {
        let missing: Vec<EndpointId> =
            ids.iter().copied().filter(|id| get(&self.endpoints, id).is_none()).collect();
        if !missing.is_empty() {
            self.refresh(&missing).await?;
        }
        Ok(ids.iter().filter_map(|id| get(&self.endpoints, id)).collect())
    }

    /// Reads endpoints anew.
    pub async fn refresh(&self, ids: &[EndpointId]) -> Result<(), Error> {
        // Boxed, as every look into the database is here: deliveries, which mostly do without, would carry the room for it.
        for endpoint in Box::pin(routing::load_endpoints(&self.pool, ids)).await? {
            put(&self.endpoints, endpoint.endpoint_id, Arc::new(endpoint));
        }
        Ok(())
    }

    /// The endpoint in the given version, or a newer one where that is gone by now.
    pub async fn target_of_version(&self, id: EndpointId, version: i64) -> Result<Arc<Target>, Error> {
        let at_hand = get(&self.endpoints, &id).filter(|endpoint| endpoint.version >= version);
        let endpoint = if let Some(endpoint) = at_hand {
            endpoint
        } else {
            self.refresh(&[id]).await?;
            get(&self.endpoints, &id).ok_or(sqlx::Error::RowNotFound)?
        };
        self.target(&endpoint).await
    }

    /// The endpoint, parsed and opened.
    async fn target(&self, endpoint: &Arc<Endpoint>) -> Result<Arc<Target>, Error> {
        if let Some(found) = get(&self.targets, &endpoint.endpoint_id)
            && found.endpoint.version == endpoint.version
        {
            return Ok(found);
        }
        let destination = self.destination(endpoint)?;
        let headers = match &endpoint.sealed_headers {
            Some(sealed) => {
                let context = context(endpoint, Purpose::EndpointHeaders);
                CustomHeaders::from_stored(&self.settings.keyring.open(&context, sealed)?)?
            }
            None => CustomHeaders::default(),
        };
        let carried = match endpoint.credential_id {
            Some(id) => Some(self.carried(endpoint.tenant_id, id).await?),
            None => None,
        };
        if let Some(name) = carried.as_ref().map(Carried::name).filter(|name| headers.contains(name)) {
            return Err(Error::SetTwice(name.clone()));
        }
        let (endpoint_copy, destination) = (Arc::clone(endpoint), Arc::new(destination));
        let target = Arc::new(Target { endpoint: endpoint_copy, destination, headers, carried });
        put(&self.endpoints, endpoint.endpoint_id, Arc::clone(endpoint));
        put(&self.targets, endpoint.endpoint_id, Arc::clone(&target));
        Ok(target)
    }

    /// The URL with its query, where the registry has allowed it one.
    fn destination(&self, endpoint: &Endpoint) -> Result<Destination, Error> {
        let Settings { keyring, url_policy, address_policy } = &self.settings;
        let Some(sealed) = &endpoint.sealed_query else {
            return Ok(Destination::parse(&endpoint.url, url_policy, address_policy)?);
        };
        let query = keyring.open(&context(endpoint, Purpose::EndpointQuery), sealed)?;
        let query = std::str::from_utf8(&query).map_err(|_| seal::Error::Damaged)?;
        let url = Zeroizing::new(format!("{}?{query}", endpoint.url));
        let url_policy = UrlPolicy { allow_query: true, ..*url_policy };
        Ok(Destination::parse(&url, &url_policy, address_policy)?)
    }

    /// The newest value of a credential, opened. It is kept with its endpoint, whose version rises when it is replaced.
    async fn carried(&self, tenant_id: TenantId, id: CredentialId) -> Result<Carried, Error> {
        let Settings { keyring, url_policy, address_policy } = &self.settings;
        let found = Box::pin(credentials::get(&self.pool, tenant_id, id)).await?;
        let found = found.ok_or(Error::CredentialMissing)?;
        let context = Context { purpose: Purpose::Credential, tenant: tenant_id, row: id.as_uuid() };
        let credential = Credential::from_stored(&keyring.open(&context, &found.sealed_value)?)?;
        let Credential::OAuth2(client) = credential else {
            return Carried::fixed(&credential).ok_or(Error::Credential(Refusal::Stored));
        };
        let destination = Destination::parse(client.token_url(), url_policy, address_policy);
        let destination = Arc::new(destination.map_err(|_| Error::TokenUrl)?);
        let version = found.version;
        let client = Client { tenant_id, credential_id: id, version, destination, credentials: client };
        Ok(Carried::Token(Arc::new(client)))
    }

    /// The key of this id, opened.
    pub async fn secret(&self, tenant_id: TenantId, id: SigningKeyId) -> Result<Arc<SigningSecret>, Error> {
        if let Some(found) = get(&self.secrets, &id) {
            return Ok(found);
        }
        let key = Box::pin(signing_keys::get(&self.pool, tenant_id, id)).await?;
        let key = key.ok_or(Error::KeyMissing)?;
        let context = Context { purpose: Purpose::SigningSecret, tenant: tenant_id, row: id.as_uuid() };
        let opened = self.settings.keyring.open(&context, &key.sealed_secret)?;
        let secret = Arc::new(SigningSecret::from_stored(key.algorithm, &opened)?);
        put(&self.secrets, id, Arc::clone(&secret));
        Ok(secret)
    }
}

fn context(endpoint: &Endpoint, purpose: Purpose) -> Context {
    Context { purpose, tenant: endpoint.tenant_id, row: endpoint.endpoint_id.as_uuid() }
}

fn get<K: std::hash::Hash + Eq, V>(cache: &RwLock<HashMap<K, Arc<V>>>, key: &K) -> Option<Arc<V>> {
    cache.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
}

fn put<K: std::hash::Hash + Eq, V>(cache: &RwLock<HashMap<K, Arc<V>>>, key: K, value: Arc<V>) {
    let mut entries = cache.write().unwrap_or_else(PoisonError::into_inner);
    if entries.len() >= MAX_CACHED {
        entries.clear();
    }
    entries.insert(key, value);
}
