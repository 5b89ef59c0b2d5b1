//! The keys that requests are signed with, and their three forms: in memory, stored (sealed by the caller), shown.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use ed25519_dalek::{Signer as _, SigningKey};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Shortest and longest HMAC secret in bytes, from the Standard Webhooks specification.
const HMAC_SECRET_LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;
/// SHA-256's block: HMAC pads shorter keys to it with zeros (RFC 2104), and ours are never longer.
const HMAC_BLOCK_LENGTH: usize = 64;
const ED25519_SEED_LENGTH: usize = 32;

pub(super) const HMAC_PREFIX: &str = "whsec_";
pub(super) const ED25519_PRIVATE_PREFIX: &str = "whsk_";
pub(super) const ED25519_PUBLIC_PREFIX: &str = "whpk_";

/// Why a key cannot be used. The texts never repeat the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the signing algorithm is `hmac-sha256` or `ed25519`")]
    UnknownAlgorithm,
    #[error("a signing key starts with `whsec_`, `whsk_` or `whpk_`")]
    UnknownPrefix,
    #[error("after its prefix a signing key is base64 with padding")]
    NotBase64,
    #[error("an HMAC secret has 24 to 64 bytes")]
    HmacLength,
    #[error(
        "an Ed25519 private key has 32 bytes of seed, followed in `whsk_` form by 32 bytes of public key"
    )]
    Ed25519Length,
    #[error("the bytes are not a usable Ed25519 key")]
    Ed25519Key,
}

/// How requests to an endpoint are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// `v1`: HMAC-SHA256 (RFC 2104) with a secret that the receiver shares.
    HmacSha256,
    /// `v1a`: Ed25519 (RFC 8032); the receiver needs only the public key.
    Ed25519,
}

impl Algorithm {
    /// The name in the API and the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HmacSha256 => "hmac-sha256",
            Self::Ed25519 => "ed25519",
        }
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "hmac-sha256" => Ok(Self::HmacSha256),
            "ed25519" => Ok(Self::Ed25519),
            _ => Err(Error::UnknownAlgorithm),
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A key that signs requests to one endpoint.
#[derive(Clone, Debug)]
pub enum SigningSecret {
    Hmac(HmacSecret),
    Ed25519(SigningKey),
}

impl SigningSecret {
    /// Makes a new key from 32 random bytes.
    pub fn generate(algorithm: Algorithm, random: [u8; 32]) -> Self {
        let random = Zeroizing::new(random);
        match algorithm {
            Algorithm::HmacSha256 => Self::Hmac(HmacSecret::keyed(random.as_slice())),
            Algorithm::Ed25519 => Self::Ed25519(SigningKey::from_bytes(&random)),
        }
    }

    /// Reads what [`Self::to_stored`] wrote.
    pub fn from_stored(algorithm: Algorithm, bytes: &[u8]) -> Result<Self, Error> {
        match algorithm {
            Algorithm::HmacSha256 => HmacSecret::new(bytes).map(Self::Hmac),
            Algorithm::Ed25519 => {
                let seed = <&[u8; ED25519_SEED_LENGTH]>::try_from(bytes).map_err(|_| Error::Ed25519Length)?;
                Ok(Self::Ed25519(SigningKey::from_bytes(seed)))
            }
        }
    }

    /// The key's bytes, to be sealed and stored: the HMAC secret, or the Ed25519 seed.
    pub fn to_stored(&self) -> Zeroizing<Vec<u8>> {
        match self {
            Self::Hmac(secret) => secret.key.clone(),
            Self::Ed25519(key) => Zeroizing::new(key.as_bytes().to_vec()),
        }
    }

    pub const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Hmac(_) => Algorithm::HmacSha256,
            Self::Ed25519(_) => Algorithm::Ed25519,
        }
    }

    /// What the endpoint's owner is shown, once: the shared secret as `whsec_…`, or the public key as `whpk_…`.
    pub fn reveal(&self) -> Zeroizing<String> {
        match self {
            Self::Hmac(secret) => encoded(HMAC_PREFIX, &secret.key),
            Self::Ed25519(key) => encoded(ED25519_PUBLIC_PREFIX, key.verifying_key().as_bytes()),
        }
    }

    /// One signature: `v1,` or `v1a,` and base64. `timestamp_s` counts seconds since the Unix epoch.
    pub fn sign(&self, id: &str, timestamp_s: i64, body: &[u8]) -> String {
        let mut signature = String::with_capacity(super::LONGEST_SIGNATURE);
        self.append_signature(&super::signed_prefix(id, timestamp_s), body, &mut signature);
        signature
    }

    pub(super) fn append_signature(&self, prefix: &str, body: &[u8], into: &mut String) {
        match self {
            Self::Hmac(secret) => {
                into.push_str("v1,");
                BASE64.encode_string(secret.mac(prefix, body), into);
            }
            Self::Ed25519(key) => {
                into.push_str("v1a,");
                BASE64.encode_string(key.sign(&[prefix.as_bytes(), body].concat()).to_bytes(), into);
            }
        }
    }
}

/// Reads `whsec_…` or `whsk_…`, so that an existing key can be brought along.
impl FromStr for SigningSecret {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(encoded) = text.strip_prefix(HMAC_PREFIX) {
            HmacSecret::new(&decoded(encoded)?).map(Self::Hmac)
        } else if let Some(encoded) = text.strip_prefix(ED25519_PRIVATE_PREFIX) {
            let bytes = decoded(encoded)?;
            let pair = <&[u8; 64]>::try_from(bytes.as_slice()).map_err(|_| Error::Ed25519Length)?;
            SigningKey::from_keypair_bytes(pair).map(Self::Ed25519).map_err(|_| Error::Ed25519Key)
        } else {
            Err(Error::UnknownPrefix)
        }
    }
}

/// An HMAC secret with its key schedule done once: each signature clones the two compressed blocks instead of
/// hashing the key again.
#[derive(Clone)]
pub struct HmacSecret {
    key: Zeroizing<Vec<u8>>,
    keyed: Hmac<Sha256>,
}

impl HmacSecret {
    pub(super) fn new(key: &[u8]) -> Result<Self, Error> {
        if HMAC_SECRET_LENGTHS.contains(&key.len()) { Ok(Self::keyed(key)) } else { Err(Error::HmacLength) }
    }

    /// `key` must not be longer than the block.
    fn keyed(key: &[u8]) -> Self {
        let mut block = Zeroizing::new([0; HMAC_BLOCK_LENGTH]);
        block[..key.len()].copy_from_slice(key);
        Self { key: Zeroizing::new(key.to_vec()), keyed: Hmac::new((&*block).into()) }
    }

    pub(super) fn mac(&self, prefix: &str, body: &[u8]) -> [u8; 32] {
        self.keyed.clone().chain_update(prefix).chain_update(body).finalize().into_bytes().into()
    }
}

impl fmt::Debug for HmacSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HmacSecret(redacted)")
    }
}

pub(super) fn decoded(encoded: &str) -> Result<Zeroizing<Vec<u8>>, Error> {
    BASE64.decode(encoded).map(Zeroizing::new).map_err(|_| Error::NotBase64)
}

fn encoded(prefix: &str, bytes: &[u8]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(prefix.len() + bytes.len().div_ceil(3) * 4));
    text.push_str(prefix);
    BASE64.encode_string(bytes, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refused_keys() {
        let short = format!("whsec_{}", BASE64.encode([7; 23]));
        let long = format!("whsec_{}", BASE64.encode([7; 65]));
        let seed_only = format!("whsk_{}", BASE64.encode([7; 32]));
        let other_public = format!("whsk_{}", BASE64.encode([7; 64]));
        for (text, expected) in [
            ("", Error::UnknownPrefix),
            ("secret", Error::UnknownPrefix),
            ("whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=", Error::UnknownPrefix),
            ("whsec_", Error::HmacLength),
            ("whsec_!", Error::NotBase64),
            (short.as_str(), Error::HmacLength),
            (long.as_str(), Error::HmacLength),
            (seed_only.as_str(), Error::Ed25519Length),
            (other_public.as_str(), Error::Ed25519Key),
        ] {
            assert_eq!(text.parse::<SigningSecret>().err(), Some(expected), "{text}");
        }
    }

    #[test]
    fn debug_output_hides_keys() {
        for algorithm in [Algorithm::HmacSha256, Algorithm::Ed25519] {
            let secret = SigningSecret::generate(algorithm, *b"canary-canary-canary-canary-1234");
            let shown = format!("{secret:?}");
            assert!(!shown.contains("99, 97, 110") && !shown.contains("canary"), "{shown}");
        }
    }

    proptest! {
        #[test]
        fn stored_keys_sign_alike(random: [u8; 32], body: Vec<u8>) {
            for algorithm in [Algorithm::HmacSha256, Algorithm::Ed25519] {
                let made = SigningSecret::generate(algorithm, random);
                let read = SigningSecret::from_stored(algorithm, &made.to_stored()).expect("own stored form");
                prop_assert_eq!(made.sign("dlv_1", 1, &body), read.sign("dlv_1", 1, &body));
                prop_assert_eq!(algorithm.as_str().parse(), Ok(algorithm));
            }
        }
    }
}
