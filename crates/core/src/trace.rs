//! W3C Trace Context (<https://www.w3.org/TR/trace-context/>): reads a caller's `traceparent` and writes ours.
//!
//! A delivery carries the trace id of its event in every attempt. A header that breaks the rules is as good as none:
//! the standard asks receivers to start a new trace then.

use std::{fmt, str::FromStr};

/// Name of the header.
pub const HEADER: &str = "traceparent";

/// Length of a version 00 header; later versions are longer.
const LENGTH: usize = 55;

/// The header is not a valid `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`traceparent` is not valid W3C Trace Context")]
pub struct Error;

/// What names a whole trace: 16 bytes, not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

impl TraceId {
    /// `None` where all bytes are zero, which the standard forbids.
    pub fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The header of one request: `00-<trace>-<span>-01`, sampled. `span` names the request; where it is zero, which
    /// the standard forbids, its last bit is set.
    pub fn traceparent(&self, span: [u8; 8]) -> String {
        let span = u64::from_be_bytes(span).max(1);
        format!("00-{self}-{span:016x}-01")
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A caller's place in a trace, as its `traceparent` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traceparent {
    pub trace_id: TraceId,
    /// The caller's span, not zero.
    pub span_id: [u8; 8],
    pub is_sampled: bool,
}

impl FromStr for Traceparent {
    type Err = Error;

    /// Section 3.2 of the standard: lower-case hexadecimal only; version ff and zero ids are invalid; version 00 ends
    /// after the flags; a later version may go on after another dash.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (head, rest) = text.split_at_checked(LENGTH).ok_or(Error)?;
        let mut fields = head.split('-');
        let mut field = |length| fields.next().filter(|field| field.len() == length).ok_or(Error);
        let version = hexadecimal(field(2)?)?;
        let trace_id = hexadecimal(field(32)?)?;
        let span_id = u64::try_from(hexadecimal(field(16)?)?).map_err(|_| Error)?;
        let flags = hexadecimal(field(2)?)?;
        let ends_well = rest.is_empty() || (version > 0 && rest.starts_with('-'));
        if version == 0xff || span_id == 0 || !ends_well {
            return Err(Error);
        }
        let trace_id = TraceId::from_bytes(trace_id.to_be_bytes()).ok_or(Error)?;
        Ok(Self { trace_id, span_id: span_id.to_be_bytes(), is_sampled: flags & 1 == 1 })
    }
}

fn hexadecimal(text: &str) -> Result<u128, Error> {
    let is_lower = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_lower { u128::from_str_radix(text, 16).map_err(|_| Error) } else { Err(Error) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_of_the_standard() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        for (text, expected) in [
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Some(true)),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", Some(false)),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03", Some(true)),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-brings", Some(true)),
            ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.what-the-future-brings", None),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-extra", None),
            ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", None),
            ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", None),
            ("00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01", None),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0", None),
            ("+0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
            ("", None),
        ] {
            let parsed = text.parse::<Traceparent>().ok();
            assert_eq!(parsed.map(|parent| parent.is_sampled), expected, "{text}");
            assert!(parsed.is_none_or(|parent| parent.trace_id.to_string() == trace), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_we_write_can_be_read(trace: [u8; 16], span: [u8; 8]) {
            prop_assume!(trace != [0; 16]);
            let trace_id = TraceId::from_bytes(trace).expect("not zero");
            let parent: Traceparent = trace_id.traceparent(span).parse().expect("own header");
            prop_assert_eq!(parent.trace_id, trace_id);
            prop_assert!(parent.is_sampled);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
            let _ = text.parse::<Traceparent>();
        }
    }
}
