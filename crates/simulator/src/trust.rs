//! Checks signatures the way a receiver does, under the secrets that were registered.
//!
//! Invariant: a secret that was registered is never shown again.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Mutex, PoisonError, RwLock},
};

use http::HeaderMap;
use postrider_core::signature::{self, VerifyingKey};
use serde::Serialize;
use time::OffsetDateTime;

use crate::Error;

/// Secrets remembered; the oldest are forgotten first.
pub const MAX_SECRETS: usize = 256;

/// Key ids remembered; beyond them, all are forgotten and learned anew.
pub const MAX_KEY_IDS: usize = 1_024;

const KEY_ID_HEADER: &str = "postrider-key-id";

/// Whether a request's signature held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Signature {
    /// Signed under a registered secret.
    Held,
    /// Signed, but not so that a receiver would believe it.
    Broken { reason: String },
    /// No `webhook-signature` header.
    Unsigned,
    /// Signed, but no secret is known to check it under: none is registered, or it names a key under which nothing has
    /// held yet. A wrong secret of the right endpoint looks the same from here.
    Unchecked { reason: String },
}

/// The registered secrets.
#[derive(Default)]
pub(crate) struct Secrets {
    keys: RwLock<VecDeque<VerifyingKey>>,
    /// Ids of the keys that a registered secret was seen to belong to.
    seen: Mutex<HashSet<String>>,
}

impl Secrets {
    pub(crate) fn add(&self, secret: &str) -> Result<(), Error> {
        let key: VerifyingKey = secret
            .trim()
            .parse()
            .map_err(|error: signature::Error| Error::Secret { reason: error.to_string() })?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.len() == MAX_SECRETS {
            keys.pop_front();
        }
        keys.push_back(key);
        keys.make_contiguous();
        Ok(())
    }

    pub(crate) fn check(&self, headers: &HeaderMap, body: &[u8], now: OffsetDateTime) -> Signature {
        if !headers.contains_key(signature::SIGNATURE_HEADER) {
            return Signature::Unsigned;
        }
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        // One slice, because `add` leaves the keys contiguous.
        let (keys, _) = keys.as_slices();
        if keys.is_empty() {
            return Signature::Unchecked { reason: "no secret is registered".to_owned() };
        }
        let key_id = headers.get(KEY_ID_HEADER).map(|value| String::from_utf8_lossy(value.as_bytes()));
        match (signature::verify(headers, body, now.unix_timestamp(), keys), key_id) {
            (Ok(()), key_id) => {
                if let Some(key_id) = key_id {
                    self.learn(&key_id);
                }
                Signature::Held
            }
            (Err(signature::Rejection::NoMatch), Some(key_id)) if !self.knows(&key_id) => {
                Signature::Unchecked { reason: format!("no secret is known for the key {key_id}") }
            }
            (Err(rejection), _) => Signature::Broken { reason: rejection.to_string() },
        }
    }

    fn learn(&self, key_id: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.contains(key_id) {
            return;
        }
        if seen.len() == MAX_KEY_IDS {
            seen.clear();
        }
        seen.insert(key_id.to_owned());
    }

    fn knows(&self, key_id: &str) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).contains(key_id)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use postrider_core::signature::SigningSecret;

    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const SIGNED_AT_S: i64 = 1_614_265_330;

    fn signed(body: &[u8]) -> HeaderMap {
        let secret: SigningSecret = SECRET.parse().unwrap();
        let header = signature::signature_header(&[&secret], "dlv_1", SIGNED_AT_S, body);
        let mut headers = HeaderMap::new();
        headers.insert(signature::ID_HEADER, HeaderValue::from_static("dlv_1"));
        headers.insert(signature::TIMESTAMP_HEADER, SIGNED_AT_S.into());
        headers.insert(signature::SIGNATURE_HEADER, header.parse().unwrap());
        headers
    }

    fn check(secrets: &[&str], headers: &HeaderMap, body: &[u8], expected: &Signature) {
        let trusted = Secrets::default();
        for secret in secrets {
            trusted.add(secret).unwrap();
        }
        let now = OffsetDateTime::from_unix_timestamp(SIGNED_AT_S + 10).unwrap();
        assert_eq!(&trusted.check(headers, body, now), expected, "{secrets:?}");
    }

    #[test]
    fn signatures_hold_only_under_a_registered_secret() {
        let headers = signed(b"{}");
        let broken = Signature::Broken { reason: "no signature matches".to_owned() };
        check(&[SECRET], &headers, b"{}", &Signature::Held);
        check(&[OTHER, SECRET], &headers, b"{}", &Signature::Held);
        check(&[SECRET], &headers, b"{ }", &broken);
        check(&[OTHER], &headers, b"{}", &broken);
        let unchecked = Signature::Unchecked { reason: "no secret is registered".to_owned() };
        check(&[], &headers, b"{}", &unchecked);
        check(&[SECRET], &HeaderMap::new(), b"{}", &Signature::Unsigned);
    }

    #[test]
    fn a_key_under_which_nothing_held_yet_is_not_called_broken() {
        let now = OffsetDateTime::from_unix_timestamp(SIGNED_AT_S).unwrap();
        let trusted = Secrets::default();
        trusted.add(OTHER).unwrap();
        let mut headers = signed(b"{}");
        headers.insert(KEY_ID_HEADER, HeaderValue::from_static("sig_1"));
        let reason = "no secret is known for the key sig_1".to_owned();
        assert_eq!(trusted.check(&headers, b"{}", now), Signature::Unchecked { reason });

        trusted.add(SECRET).unwrap();
        assert_eq!(trusted.check(&headers, b"{}", now), Signature::Held);
        assert!(matches!(trusted.check(&headers, b"changed", now), Signature::Broken { .. }));
    }

    #[test]
    fn the_oldest_secret_is_forgotten_first() {
        let trusted = Secrets::default();
        trusted.add(SECRET).unwrap();
        for _ in 0..MAX_SECRETS {
            trusted.add(OTHER).unwrap();
        }
        let now = OffsetDateTime::from_unix_timestamp(SIGNED_AT_S).unwrap();
        assert!(matches!(trusted.check(&signed(b""), b"", now), Signature::Broken { .. }));
        assert!(matches!(trusted.add("whsec_short"), Err(Error::Secret { .. })));
    }
}
