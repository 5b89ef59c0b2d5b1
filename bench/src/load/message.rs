//! The request that publishes an event: its bytes are built once, and only the event's number is written into them.
//!
//! The body is JSON of [`BODY_BYTES`] bytes. It begins with the event's number, by which the sink, in the same process,
//! finds the times of the event in the ledger. The idempotency key is unlike that of the event before, as publishers'
//! keys are, so that its index gets no help from their order.

use std::net::SocketAddr;

pub(crate) const BODY_BYTES: usize = 300;
const BODY_START: &[u8] = b"{\"event\":\"";
const BODY_MIDDLE: &[u8] = b"\",\"padding\":\"";
const BODY_END: &[u8] = b"\"}";
/// Hexadecimal digits of a number.
const DIGITS: usize = 16;
/// Any odd number: multiplying by it modulo 2^64 never gives two events one key.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Where requests go.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    pub(crate) token: String,
}

impl Target {
    /// The same for events of another type.
    pub(crate) fn for_event_type(&self, event_type: &str) -> Self {
        let before = self.path.rsplit_once('/').map_or("", |(before, _)| before);
        Self { path: format!("{before}/{event_type}"), ..self.clone() }
    }
}

/// A whole request. Clones are numbered apart.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    key_at: usize,
    number_at: usize,
}

impl Request {
    pub(crate) fn new(target: &Target) -> Self {
        let Target { address, path, token } = target;
        let mut bytes = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {BODY_BYTES}\r\nidempotency-key: "
        )
        .into_bytes();
        let key_at = bytes.len();
        bytes.extend([b'0'; DIGITS]);
        bytes.extend(b"\r\n\r\n");
        let number_at = bytes.len() + BODY_START.len();
        bytes.extend(body(0));
        Self { bytes, key_at, number_at }
    }

    pub(crate) fn set_number(&mut self, number: u32) {
        write_digits(&mut self.bytes[self.key_at..][..DIGITS], key(number));
        write_digits(&mut self.bytes[self.number_at..][..DIGITS], number.into());
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The body of one event.
pub(crate) fn body(number: u32) -> Vec<u8> {
    let mut body = BODY_START.to_vec();
    body.extend([b'0'; DIGITS]);
    write_digits(&mut body[BODY_START.len()..], number.into());
    body.extend(BODY_MIDDLE);
    body.resize(BODY_BYTES - BODY_END.len(), b'x');
    body.extend(BODY_END);
    body
}

/// The idempotency key of one event, as a number.
pub(crate) fn key(number: u32) -> u64 {
    u64::from(number).wrapping_mul(SCATTER)
}

/// The number in a body.
pub(crate) fn number(body: &[u8]) -> Option<u32> {
    let digits = body.strip_prefix(BODY_START)?.get(..DIGITS)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn write_digits(slots: &mut [u8], number: u64) {
    let mut left = number;
    for slot in slots.iter_mut().rev() {
        *slot = b"0123456789abcdef"[usize::try_from(left & 0xf).unwrap_or_default()];
        left >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_json_of_the_stated_size_and_names_its_event() {
        for wanted in [0, 1, 0xbeef, u32::MAX] {
            let body = body(wanted);
            assert_eq!(body.len(), BODY_BYTES);
            assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
            assert_eq!(number(&body), Some(wanted));
        }
        for foreign in [b"".as_slice(), b"{\"event\":\"12\"}", b"{\"event\":\"000000000000000g\"}"] {
            assert_eq!(number(foreign), None);
        }
    }

    #[test]
    fn another_event_type_changes_only_the_end_of_the_path() {
        let target = Target {
            address: "127.0.0.1:80".parse().unwrap(),
            path: "/applications/orders/events/order.created".to_owned(),
            token: "token".to_owned(),
        };
        assert_eq!(target.for_event_type("order.paid").path, "/applications/orders/events/order.paid");
    }

    #[test]
    fn a_request_ends_in_the_body_of_the_event_it_was_numbered_with() {
        let target = Target {
            address: "127.0.0.1:80".parse().unwrap(),
            path: "/events".to_owned(),
            token: "token".to_owned(),
        };
        let mut request = Request::new(&target);
        let unnumbered = request.bytes().len();
        request.set_number(42);
        assert!(request.bytes().ends_with(&body(42)));
        assert_eq!(request.bytes().len(), unnumbered);
        let head = String::from_utf8_lossy(request.bytes());
        assert!(head.contains(&format!("\r\nidempotency-key: {:016x}\r\n\r\n", key(42))), "{head}");
    }
}
