//! Signs requests and verifies them as the Standard Webhooks specification says
//! (<https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>).
//!
//! What is signed is `{id}.{timestamp}.{body}`, the body byte for byte. Invariants: a secret never appears in
//! `Debug` output and is wiped when dropped; verification fails closed and takes the same time wherever a MAC differs.

mod secret;
mod verification;

use std::fmt::Write as _;

pub use secret::{Algorithm, Error, HmacSecret, SigningSecret};
pub use verification::{MAX_SIGNATURES, Rejection, TOLERANCE_S, VerifyingKey, verify};

/// The id that receivers deduplicate by.
pub const ID_HEADER: &str = "webhook-id";
/// When the attempt was signed, in seconds since the Unix epoch.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// Signatures by one or more keys, separated by spaces.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

/// Length of one Ed25519 entry, `v1a,` and 88 characters of base64: the longest there is.
const LONGEST_SIGNATURE: usize = 92;

/// The value of `webhook-signature` for one request: one entry per secret, in the given order.
///
/// `timestamp_s` is the value of `webhook-timestamp`. Several secrets are in use while a rotation overlaps, so that
/// receivers may hold either.
pub fn signature_header(secrets: &[&SigningSecret], id: &str, timestamp_s: i64, body: &[u8]) -> String {
    let prefix = signed_prefix(id, timestamp_s);
    let mut header = String::with_capacity(secrets.len() * (LONGEST_SIGNATURE + 1));
    for secret in secrets {
        if !header.is_empty() {
            header.push(' ');
        }
        secret.append_signature(&prefix, body, &mut header);
    }
    header
}

/// The part of the signed content that comes before the body.
fn signed_prefix(id: &str, timestamp_s: i64) -> String {
    let mut prefix = String::with_capacity(id.len() + 22);
    prefix.push_str(id);
    // Writing to a `String` cannot fail.
    let _ = write!(prefix, ".{timestamp_s}.");
    prefix
}
