//! What a publisher may send. The body is kept byte for byte, so it is only looked at, never rebuilt.

use sha2::{Digest, Sha256};

use crate::{id::EndpointId, name::EventType};

/// Largest event body, in bytes (1 MiB).
pub const MAX_BODY_BYTES: usize = 1024 * 1024;
/// Deepest nesting of arrays and objects in a body.
pub const MAX_JSON_DEPTH: usize = 128;

/// Why a body is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the body is not valid UTF-8 at byte {at}; send JSON encoded as UTF-8")]
    NotUtf8 { at: usize },
    #[error("the body is not valid JSON: {reason}")]
    NotJson { reason: String },
    #[error("the body is nested deeper than {MAX_JSON_DEPTH} levels; flatten it")]
    TooDeep,
}

/// Checks that a body is one JSON text (RFC 8259) in UTF-8, within the depth limit. Nothing is decoded: big numbers,
/// duplicate keys and lone surrogate escapes are the receiver's business and arrive as they were sent.
pub fn check_json(body: &[u8]) -> Result<(), Error> {
    let text = std::str::from_utf8(body).map_err(|error| Error::NotUtf8 { at: error.valid_up_to() })?;
    // The parser below accepts any depth, so the depth is measured first.
    if depth(body) > MAX_JSON_DEPTH {
        return Err(Error::TooDeep);
    }
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::NotJson { reason: error.to_string() }),
    }
}

/// Key spaces keep the idempotency keys of events, notifications and each provider apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeySpace {
    Events,
    Notifications,
}

impl KeySpace {
    /// The number it is stored under; never reused.
    pub const fn number(self) -> i16 {
        match self {
            Self::Events => 1,
            Self::Notifications => 2,
        }
    }
}

/// SHA-256 over everything that makes two publishes the same event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Each part is preceded by its length, so that no two different events share their concatenation.
    pub fn of(event_type: &EventType, content_type: &str, body: &[u8]) -> Self {
        Self::over([event_type.as_str().as_bytes(), content_type.as_bytes(), body])
    }

    /// What makes two notifications the same: the endpoint and what it is sent.
    pub fn of_notification(endpoint: EndpointId, content_type: &str, body: &[u8]) -> Self {
        Self::over([endpoint.as_uuid().as_bytes(), content_type.as_bytes(), body])
    }

    fn over(parts: [&[u8]; 3]) -> Self {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        Self(digest.finalize().into())
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Deepest nesting of brackets outside strings. On text that is not JSON the figure means nothing, but is bounded by
/// the text's length and computed in one pass.
fn depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
    }
    deepest
}

fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn nested(times: usize) -> Vec<u8> {
        [vec![b'['; times], vec![b']'; times]].concat()
    }

    #[test]
    fn bodies_are_accepted_or_refused_for_one_reason() {
        let accepted: &[&[u8]] = &[
            br#"{"a":"x\u0000y"}"#,
            br#"{"a":"\ud800"}"#,
            br#"{"a":1e400,"b":-0.0,"a":18446744073709551616}"#,
            b" null ",
            br#""[[[""#,
            &nested(MAX_JSON_DEPTH),
        ];
        for body in accepted {
            assert_eq!(check_json(body), Ok(()), "{:?}", String::from_utf8_lossy(body));
        }
        assert_eq!(check_json(&nested(MAX_JSON_DEPTH + 1)), Err(Error::TooDeep));
        assert_eq!(check_json(b"{\"a\":\"\xff\"}"), Err(Error::NotUtf8 { at: 6 }));
        let broken: &[&[u8]] =
            &[b"", b" ", b"{", b"{'a':1}", b"{\"a\":+1}", b"NaN", b"{} x", b"{\"a\":\"\x01\"}", b"\"\\u12\""];
        for body in broken {
            assert!(
                matches!(check_json(body), Err(Error::NotJson { .. })),
                "{:?}",
                String::from_utf8_lossy(body)
            );
        }
    }

    #[test]
    fn fingerprints_tell_every_part_apart() {
        let event_type = |text: &str| text.parse::<EventType>().expect("event type");
        let one = Fingerprint::of(&event_type("a.b"), "application/json", b"{}");
        assert_eq!(one, Fingerprint::of(&event_type("a.b"), "application/json", b"{}"));
        assert_ne!(one, Fingerprint::of(&event_type("a.c"), "application/json", b"{}"));
        assert_ne!(one, Fingerprint::of(&event_type("a.b"), "application/xml", b"{}"));
        assert_ne!(one, Fingerprint::of(&event_type("a.b"), "application/json", b"{} "));

        let endpoint = |number| EndpointId::from_uuid(uuid::Uuid::from_u128(number));
        let sms = Fingerprint::of_notification(endpoint(1), "text/plain", b"hello");
        assert_eq!(sms, Fingerprint::of_notification(endpoint(1), "text/plain", b"hello"));
        assert_ne!(sms, Fingerprint::of_notification(endpoint(2), "text/plain", b"hello"));
        assert_ne!(sms, Fingerprint::of_notification(endpoint(1), "text/html", b"hello"));
        assert_ne!(sms, Fingerprint::of_notification(endpoint(1), "text/plain", b"hello "));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(body: Vec<u8>) {
            let _ = check_json(&body);
        }
    }
}
