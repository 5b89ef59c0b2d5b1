//! Verifies a Standard Webhooks request: what receivers do with our deliveries, and we with a provider's.

use std::str::FromStr;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::HeaderMap;
use subtle::ConstantTimeEq as _;

use super::{
    Error, HmacSecret, ID_HEADER, SIGNATURE_HEADER, SigningSecret, TIMESTAMP_HEADER,
    secret::{ED25519_PRIVATE_PREFIX, ED25519_PUBLIC_PREFIX, HMAC_PREFIX, decoded},
};

/// How far a timestamp may lie before or after the verifier's clock, in seconds.
pub const TOLERANCE_S: u64 = 300;
/// Most entries of one `webhook-signature` that are looked at; what follows is ignored, so that a long header
/// cannot buy work.
pub const MAX_SIGNATURES: usize = 16;

const ED25519_SIGNATURE_LENGTH: usize = 64;
/// 12 digits reach the year 33658.
const MAX_TIMESTAMP_DIGITS: usize = 12;

/// Why a request is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    #[error("the header `{0}` is missing")]
    HeaderMissing(&'static str),
    #[error("the header `{0}` is there more than once")]
    HeaderRepeated(&'static str),
    #[error("the header `{0}` is not visible ASCII text")]
    HeaderUnreadable(&'static str),
    #[error("`webhook-id` is empty or contains a full stop, which would make the signed content ambiguous")]
    Id,
    #[error("`webhook-timestamp` is not a whole number of seconds")]
    Timestamp,
    #[error("`webhook-timestamp` lies more than {TOLERANCE_S} s in the past")]
    TooOld,
    #[error("`webhook-timestamp` lies more than {TOLERANCE_S} s in the future")]
    TooNew,
    #[error("no signature matches")]
    NoMatch,
}

/// What a signature is checked with.
#[derive(Clone, Debug)]
pub enum VerifyingKey {
    Hmac(HmacSecret),
    Ed25519(ed25519_dalek::VerifyingKey),
}

/// Reads `whsec_…`, `whpk_…`, or the public half of `whsk_…`.
impl FromStr for VerifyingKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(encoded) = text.strip_prefix(ED25519_PUBLIC_PREFIX) {
            let bytes = decoded(encoded)?;
            let public = <&[u8; 32]>::try_from(bytes.as_slice()).map_err(|_| Error::Ed25519Key)?;
            let key = ed25519_dalek::VerifyingKey::from_bytes(public).map_err(|_| Error::Ed25519Key)?;
            return if key.is_weak() { Err(Error::Ed25519Key) } else { Ok(Self::Ed25519(key)) };
        }
        if text.starts_with(HMAC_PREFIX) || text.starts_with(ED25519_PRIVATE_PREFIX) {
            return text.parse::<SigningSecret>().map(Self::from);
        }
        Err(Error::UnknownPrefix)
    }
}

impl From<SigningSecret> for VerifyingKey {
    fn from(secret: SigningSecret) -> Self {
        match secret {
            SigningSecret::Hmac(secret) => Self::Hmac(secret),
            SigningSecret::Ed25519(key) => Self::Ed25519(key.verifying_key()),
        }
    }
}

impl VerifyingKey {
    fn accepts(&self, entry: &str, prefix: &str, body: &[u8]) -> bool {
        match (self, entry.split_once(',')) {
            (Self::Hmac(secret), Some(("v1", encoded))) => {
                // The lengths are compared first: a comparison that stops at the shorter text would let a prefix,
                // even an empty one, pass (RUSTSEC-2024-0010).
                let expected = BASE64.encode(secret.mac(prefix, body));
                encoded.len() == expected.len() && bool::from(encoded.as_bytes().ct_eq(expected.as_bytes()))
            }
            (Self::Ed25519(key), Some(("v1a", encoded))) => {
                let decoded = BASE64.decode(encoded).unwrap_or_default();
                let Ok(bytes) = <&[u8; ED25519_SIGNATURE_LENGTH]>::try_from(decoded.as_slice()) else {
                    return false;
                };
                // Strict: refuses the second spelling (S + L) that RFC 8032 section 5.1.7 forbids, and weak points.
                let message = [prefix.as_bytes(), body].concat();
                key.verify_strict(&message, &ed25519_dalek::Signature::from_bytes(bytes)).is_ok()
            }
            (Self::Hmac(_) | Self::Ed25519(_), _) => false,
        }
    }
}

/// Checks the three Standard Webhooks headers over the raw body.
///
/// `now_s` is the verifier's clock in seconds since the Unix epoch. One matching pair of key and entry is enough; no
/// keys accept nothing. The timestamp is signed as the text that was sent, and only its canonical spelling counts.
pub fn verify(headers: &HeaderMap, body: &[u8], now_s: i64, keys: &[VerifyingKey]) -> Result<(), Rejection> {
    let id = single(headers, ID_HEADER)?;
    let timestamp = single(headers, TIMESTAMP_HEADER)?;
    let signatures = single(headers, SIGNATURE_HEADER)?;
    if id.is_empty() || id.contains('.') {
        return Err(Rejection::Id);
    }
    let timestamp_s = parse_timestamp(timestamp).ok_or(Rejection::Timestamp)?;
    if timestamp_s.abs_diff(now_s) > TOLERANCE_S {
        return Err(if timestamp_s < now_s { Rejection::TooOld } else { Rejection::TooNew });
    }
    let prefix = super::signed_prefix(id, timestamp_s);
    let is_signed = signatures
        .split(' ')
        .take(MAX_SIGNATURES)
        .any(|entry| keys.iter().any(|key| key.accepts(entry, &prefix, body)));
    if is_signed { Ok(()) } else { Err(Rejection::NoMatch) }
}

fn single<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<&'h str, Rejection> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(Rejection::HeaderMissing(name))?;
    if values.next().is_some() {
        return Err(Rejection::HeaderRepeated(name));
    }
    value.to_str().map_err(|_| Rejection::HeaderUnreadable(name))
}

/// Digits only, without sign, space or leading zero: one number has one spelling.
fn parse_timestamp(text: &str) -> Option<i64> {
    let is_canonical = (1..=MAX_TIMESTAMP_DIGITS).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    if is_canonical { text.parse().ok() } else { None }
}
