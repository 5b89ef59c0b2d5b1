//! The headers an endpoint's owner may add to its requests.
//!
//! Invariant: none of them can change how a request is framed, routed, signed or traced, and their values, which may be
//! credentials, appear in no `Debug` output.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use zeroize::Zeroizing;

/// Most custom headers of one endpoint.
pub const MAX_COUNT: usize = 20;
/// Longest name in bytes.
pub const MAX_NAME_LENGTH: usize = 64;
/// Longest value in bytes.
pub const MAX_VALUE_LENGTH: usize = 1024;

/// Why a header is refused. The texts repeat names, never values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("an endpoint has at most {MAX_COUNT} headers")]
    TooMany,
    #[error("a header name has 1 to {MAX_NAME_LENGTH} letters, digits or any of !#$%&'*+-.^_`|~")]
    Name,
    #[error("the header `{0}` is set by Postrider or by the connection; leave it out")]
    Reserved(HeaderName),
    #[error("the header `{0}` is given twice: upper and lower case name the same header")]
    Repeated(HeaderName),
    #[error(
        "the value of `{0}` has at most {MAX_VALUE_LENGTH} visible ASCII characters, with spaces and tabs only between them"
    )]
    Value(HeaderName),
    #[error("the stored headers are damaged")]
    Stored,
}

/// Validated custom headers.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CustomHeaders(Vec<(HeaderName, HeaderValue)>);

impl CustomHeaders {
    /// Validates names and values as a caller gave them.
    pub fn from_pairs<N, V>(pairs: impl IntoIterator<Item = (N, V)>) -> Result<Self, Refusal>
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut headers = Self::default();
        for (name, value) in pairs {
            let name = parse_name(name.as_ref())?;
            let value = parse_value(&name, value.as_ref())?;
            if headers.0.iter().any(|(earlier, _)| *earlier == name) {
                return Err(Refusal::Repeated(name));
            }
            if headers.0.len() == MAX_COUNT {
                return Err(Refusal::TooMany);
            }
            headers.0.push((name, value));
        }
        Ok(headers)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a header of this name is among them.
    pub fn contains(&self, name: &HeaderName) -> bool {
        self.0.iter().any(|(own, _)| own == name)
    }

    /// The names in lower case: what a read may show.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Adds the headers to a request. Values are marked sensitive.
    pub fn append_to(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0 {
            headers.append(name.clone(), value.clone());
        }
    }

    /// One `name:value` per line, to be sealed and stored.
    pub fn to_stored(&self) -> Zeroizing<Vec<u8>> {
        let mut stored = Zeroizing::new(Vec::new());
        for (name, value) in &self.0 {
            stored.extend_from_slice(name.as_str().as_bytes());
            stored.push(b':');
            stored.extend_from_slice(value.as_bytes());
            stored.push(b'\n');
        }
        stored
    }

    /// Reads what [`Self::to_stored`] wrote, by the same rules as a caller's.
    pub fn from_stored(stored: &[u8]) -> Result<Self, Refusal> {
        let text = std::str::from_utf8(stored).map_err(|_| Refusal::Stored)?;
        let pairs: Option<Vec<_>> = text.split_terminator('\n').map(|line| line.split_once(':')).collect();
        Self::from_pairs(pairs.ok_or(Refusal::Stored)?)
    }
}

impl fmt::Debug for CustomHeaders {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.names().map(|name| (name, "redacted"))).finish()
    }
}

/// RFC 9110 section 5.6.2: a token.
fn parse_name(text: &str) -> Result<HeaderName, Refusal> {
    if text.len() > MAX_NAME_LENGTH {
        return Err(Refusal::Name);
    }
    let name: HeaderName = text.parse().map_err(|_| Refusal::Name)?;
    if is_reserved(name.as_str()) { Err(Refusal::Reserved(name)) } else { Ok(name) }
}

/// RFC 9110 section 5.5 without its obsolete bytes above 0x7f and without line folding. White space at either end
/// would not survive the receiver's parser, so it is refused rather than changed.
fn parse_value(name: &HeaderName, text: &str) -> Result<HeaderValue, Refusal> {
    let is_plain = text.len() <= MAX_VALUE_LENGTH
        && text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ' || byte == b'\t')
        && text.trim_ascii() == text;
    let value = if is_plain { HeaderValue::from_str(text).ok() } else { None };
    let mut value = value.ok_or_else(|| Refusal::Value(name.clone()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// `name` is in lower case.
fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

const RESERVED: [&str; 22] = [
    // Framing and connection, RFC 9110 section 7.6.1 and RFC 9112: they say where a message ends and who reads it.
    "connection",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    // An offered coding would let a receiver answer with a compressed bomb; a wanted range, with part of an answer.
    "accept-encoding",
    "range",
    // Postrider has no session with a receiver.
    "cookie",
    "cookie2",
    // What the metadata services of clouds want to see before they answer: a second wall behind the address guard.
    "metadata",
    "metadata-flavor",
    "x-aws-ec2-metadata-token",
    "x-aws-ec2-metadata-token-ttl-seconds",
    // Set with each request.
    "date",
    "user-agent",
    "traceparent",
    "tracestate",
];

const RESERVED_PREFIXES: [&str; 4] = [
    // Length, type and coding belong to the body that was accepted.
    "content-",
    "postrider-",
    // For the next proxy, RFC 9110 section 11.7.
    "proxy-",
    // What receivers verify.
    "webhook-",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn limits() {
        let numbered =
            |count: usize| CustomHeaders::from_pairs((0..count).map(|number| (format!("x-{number}"), "1")));
        assert!(numbered(MAX_COUNT).is_ok());
        assert_eq!(numbered(MAX_COUNT + 1), Err(Refusal::TooMany));
        let name = |length: usize| CustomHeaders::from_pairs([("x".repeat(length), "1")]);
        assert!(name(MAX_NAME_LENGTH).is_ok());
        assert_eq!(name(MAX_NAME_LENGTH + 1), Err(Refusal::Name));
        let value = |length: usize| CustomHeaders::from_pairs([("x", "1".repeat(length))]);
        assert!(value(MAX_VALUE_LENGTH).is_ok());
        assert_eq!(value(MAX_VALUE_LENGTH + 1), Err(Refusal::Value(HeaderName::from_static("x"))));
        assert_eq!(
            CustomHeaders::from_pairs([("X-A", "1"), ("x-a", "2")]),
            Err(Refusal::Repeated(HeaderName::from_static("x-a")))
        );
    }

    #[test]
    fn every_reserved_header_is_refused_in_any_case() {
        let prefixed = RESERVED_PREFIXES.map(|prefix| format!("{prefix}x"));
        for name in RESERVED.iter().copied().chain(prefixed.iter().map(String::as_str)) {
            for spelling in [name.to_owned(), name.to_ascii_uppercase()] {
                let refusal = CustomHeaders::from_pairs([(&spelling, "1")]);
                assert!(matches!(refusal, Err(Refusal::Reserved(_))), "{spelling}: {refusal:?}");
            }
        }
    }

    #[test]
    fn white_space_only_between_words() {
        for (value, accepted) in
            [("a b", true), ("a\tb", true), ("", true), (" a", false), ("a ", false), ("\t", false)]
        {
            assert_eq!(CustomHeaders::from_pairs([("x-a", value)]).is_ok(), accepted, "{value:?}");
        }
    }

    #[test]
    fn debug_output_hides_values() {
        let headers = CustomHeaders::from_pairs([("Authorization", "Bearer canary")]).expect("valid");
        let mut map = HeaderMap::new();
        headers.append_to(&mut map);
        assert_eq!(
            format!("{headers:?} {map:?}"),
            r#"{"authorization": "redacted"} {"authorization": Sensitive}"#
        );
    }

    proptest! {
        #[test]
        fn stored_headers_read_back(pairs in prop::collection::hash_map("x-[a-z0-9]{1,20}", "[!-~]([ -~]{0,30}[!-~])?", 0..20)) {
            let headers = CustomHeaders::from_pairs(&pairs).expect("valid");
            prop_assert_eq!(CustomHeaders::from_stored(&headers.to_stored()), Ok(headers));
        }

        #[test]
        fn nothing_that_passes_can_break_a_line(name: String, value: String) {
            if let Ok(headers) = CustomHeaders::from_pairs([(name, value)]) {
                let stored = headers.to_stored();
                prop_assert_eq!(stored.iter().filter(|byte| matches!(byte, b'\r' | b'\n' | 0)).count(), 1);
            }
        }
    }
}
