//! How the file spells what it says: without tags, and numbers in decimal digits.
//!
//! The reader hands on values alone. What a spelling hides, such as a URL in `!!binary` or a number in `0x`, cannot be told
//! from them, so the text is walked once more, after the reader took it: it is whole, small and shallow then.
//!
//! Invariant: whoever reviews the file reads what applies.

use granit_parser::{Event, Parser, Span};

use super::Refusal;

const TAGGED: &str = "tags (`!`, `!!`) are not taken; write the value itself, plainly";
const NOT_DECIMAL: &str = "this is not a number in decimal digits, such as 1750 or 2.5";
/// What stands for nothing at all.
const ABSENT: [&str; 5] = ["", "~", "null", "Null", "NULL"];

/// Refuses a text that says something in another way than it is read.
pub(super) fn check(text: &str) -> Result<(), Refusal> {
    let mut place = Place::default();
    for next in Parser::new_from_str(text) {
        let (event, span) = next.map_err(|_| Refusal::whole("this is not YAML"))?;
        match event {
            Event::Scalar(value, _, _, tag) => {
                if tag.is_some() {
                    return Err(place.refusal(span, TAGGED));
                }
                if place.is_at_a_key() {
                    place.enter(&value);
                } else {
                    if place.takes_a_number() && !ABSENT.contains(&&*value) && !is_decimal(&value) {
                        return Err(place.refusal(span, NOT_DECIMAL));
                    }
                    place.pass();
                }
            }
            Event::SequenceStart(_, _, tag) | Event::MappingStart(_, _, tag) if tag.is_some() => {
                return Err(place.refusal(span, TAGGED));
            }
            Event::SequenceStart(..) => place.frames.push(Frame::List),
            Event::MappingStart(..) => place.frames.push(Frame::Map { key: None }),
            Event::SequenceEnd | Event::MappingEnd => {
                place.frames.pop();
                place.pass();
            }
            // Anchors and aliases the reader has refused; nothing else stands for a value.
            _ => {}
        }
    }
    Ok(())
}

/// Digits, and at most one point between them. A leading zero is octal to some.
fn is_decimal(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let has_digits_alone = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let leads_with_zero = whole.len() > 1 && whole.starts_with('0');
    has_digits_alone(whole) && has_digits_alone(fraction) && !leads_with_zero
}

/// Where in the file the walk is.
#[derive(Default)]
struct Place {
    frames: Vec<Frame>,
}

enum Frame {
    List,
    /// Under this key; at one where there is none yet.
    Map {
        key: Option<String>,
    },
}

impl Place {
    fn is_at_a_key(&self) -> bool {
        matches!(self.frames.last(), Some(Frame::Map { key: None }))
    }

    fn enter(&mut self, name: &str) {
        if let Some(Frame::Map { key }) = self.frames.last_mut() {
            *key = Some(name.to_owned());
        }
    }

    /// A value is over.
    fn pass(&mut self) {
        if let Some(Frame::Map { key }) = self.frames.last_mut() {
            *key = None;
        }
    }

    fn keys(&self) -> Vec<&str> {
        let key = |frame| match frame {
            &Frame::Map { key: Some(ref key) } => Some(key.as_str()),
            Frame::Map { key: None } | Frame::List => None,
        };
        self.frames.iter().filter_map(key).collect()
    }

    fn takes_a_number(&self) -> bool {
        matches!(
            self.keys().as_slice(),
            ["tenants", _, "endpoints", _, "maxInFlight" | "timeoutMs"]
                | ["tenants", _, "endpoints", _, "retry" | "rateLimit", _]
        )
    }

    fn refusal(&self, span: Span, reason: &str) -> Refusal {
        Refusal {
            line: u64::try_from(span.start.line()).ok(),
            path: self.keys().join("."),
            reason: reason.to_owned(),
        }
    }
}
