//! Credentials of a scenario, sealed as the API seals them.

use postrider_core::{
    credential::{ClientAuthentication, ClientCredentials, Credential, Parts},
    id::CredentialId,
    name::Name,
    seal::{Context, Purpose},
};
use postrider_store::{
    credentials::{self, NewValue},
    edit,
};
use uuid::Uuid;

use super::{Tenant, keyring, parsed};

impl Tenant {
    /// Stores a credential.
    pub async fn credential(&self, name: &str, credential: &Credential) -> CredentialId {
        let (id, name): (_, Name) = (CredentialId::from_uuid(Uuid::now_v7()), parsed(name));
        let sealed_value = seal(self, id, credential);
        let value = NewValue { kind: credential.kind(), sealed_value: &sealed_value };
        let mut transaction = edit::begin(&self.pool).await.expect("a transaction begins");
        let created = credentials::create(&mut transaction, self.id, id, &name, value).await;
        created.expect("the credential's name is free");
        transaction.commit().await.expect("the credential is committed");
        id
    }

    /// Replaces a credential's value.
    pub async fn replace_credential(&self, name: &str, credential: &Credential) {
        let mut transaction = edit::begin(&self.pool).await.expect("a transaction begins");
        let id = credentials::lock_by_name(&mut transaction, self.id, &parsed(name)).await;
        let id = id.expect("the credential exists");
        let endpoints = credentials::lock_endpoints(&mut transaction, self.id, id).await;
        let endpoints = endpoints.expect("its endpoints can be read");
        let sealed_value = seal(self, id, credential);
        let value = NewValue { kind: credential.kind(), sealed_value: &sealed_value };
        let replaced = credentials::replace(&mut transaction, self.id, id, &endpoints, value).await;
        replaced.expect("the credential exists");
        transaction.commit().await.expect("the change is committed");
    }
}

/// A client that fetches tokens here.
pub fn token_client(token_url: &str, client_secret: &str) -> Credential {
    let parts = Parts {
        token_url: token_url.to_owned(),
        client_id: "acme".into(),
        client_secret: client_secret.into(),
        scope: None,
        audience: None,
        client_authentication: ClientAuthentication::Basic,
    };
    Credential::OAuth2(ClientCredentials::new(parts).expect("a client within bounds"))
}

fn seal(tenant: &Tenant, id: CredentialId, credential: &Credential) -> Vec<u8> {
    let context = Context { purpose: Purpose::Credential, tenant: tenant.id, row: id.as_uuid() };
    let [nonce @ .., _, _, _, _] = Uuid::new_v4().into_bytes();
    keyring().seal(nonce, &context, &credential.to_stored())
}
