//! Secrets on their way out: made, sealed or hashed, and shown once.

use std::fmt;

use postrider_core::{
    id::{SigningKeyId, TenantId},
    pepper::Hashes,
    seal::{Context, Purpose},
    signature::{Algorithm, SigningSecret},
    token::{Kind, Token},
};
use serde::{Serialize, Serializer};
use zeroize::Zeroizing;

use crate::{problem::Problem, random, state::State};

/// A secret in an answer. Wiped from memory once it is sent; no log shows it.
pub(crate) struct Shown(Zeroizing<String>);

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl From<Zeroizing<String>> for Shown {
    fn from(secret: Zeroizing<String>) -> Self {
        Self(secret)
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Shown(redacted)")
    }
}

/// A new token: what its owner is shown, and the keyed hashes of which the database stores one.
pub(crate) fn mint_token(kind: Kind, state: &State) -> Result<(Shown, Hashes), Problem> {
    let token = Token::mint(kind, random::bytes()?);
    Ok((Shown(token.reveal()), state.peppers.hashes(&token)))
}

/// A new signing key, sealed for the database.
pub(crate) struct SigningKey {
    pub(crate) id: SigningKeyId,
    pub(crate) sealed_secret: Vec<u8>,
    pub(crate) shown: Shown,
}

/// Makes a signing key for an endpoint of this tenant.
pub(crate) fn generate_signing_key(
    algorithm: Algorithm,
    tenant_id: TenantId,
    state: &State,
) -> Result<SigningKey, Problem> {
    let secret = SigningSecret::generate(algorithm, random::bytes()?);
    let id = SigningKeyId::from_uuid(state.fresh_uuid());
    let context = Context { purpose: Purpose::SigningSecret, tenant: tenant_id, row: id.as_uuid() };
    let sealed_secret = state.keyring.seal(random::bytes()?, &context, &secret.to_stored());
    Ok(SigningKey { id, sealed_secret, shown: Shown(secret.reveal()) })
}
