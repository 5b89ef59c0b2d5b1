//! Names that people choose, and the event types and patterns that route events. Validated once, at the edge.

use std::{fmt, str::FromStr};

/// Longest name of a tenant, application, endpoint, subscription or key, in bytes.
pub const MAX_NAME_LENGTH: usize = 64;
/// Longest event type or pattern, in bytes.
pub const MAX_EVENT_TYPE_LENGTH: usize = 128;
/// Longest idempotency key, in bytes: far below what a B-tree page can index (about 2,700).
pub const MAX_IDEMPOTENCY_KEY_LENGTH: usize = 255;
/// Most event types one subscription may name.
pub const MAX_EVENT_TYPES_PER_SUBSCRIPTION: usize = 50;

/// Why a name is refused; the text says what would be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "a name has 1 to {MAX_NAME_LENGTH} characters: lower-case letters, digits, `-` and `_`, \
         and starts with a letter or digit"
    )]
    Name,
    #[error(
        "an event type has 1 to {MAX_EVENT_TYPE_LENGTH} characters: segments of letters, digits, `-` and `_`, \
         joined by single dots, such as `order.created`"
    )]
    EventType,
    #[error(
        "an event type pattern is `*`, an event type such as `order.created`, or a prefix such as `order.*`"
    )]
    EventTypePattern,
    #[error("an idempotency key has 1 to {MAX_IDEMPOTENCY_KEY_LENGTH} visible ASCII characters")]
    IdempotencyKey,
}

macro_rules! text {
    ($(#[$doc:meta])* $name:ident, $error:expr, $accepts:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Box<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let accepts: fn(&str) -> bool = $accepts;
                if accepts(text) { Ok(Self(text.into())) } else { Err($error) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self, Error> {
                text.parse()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, formatter)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

text!(/// The short name users choose for a tenant, application, endpoint, subscription or key.
    Name, Error::Name, is_name);
text!(/// What happened: dot-separated segments such as `order.created`.
    EventType, Error::EventType, is_event_type);
text!(/// Which event types a subscription wants: exact, a prefix such as `order.*`, or `*`.
    EventTypePattern, Error::EventTypePattern, is_pattern);
text!(/// The publisher's own key for one event: the same key never makes two events.
    IdempotencyKey, Error::IdempotencyKey, is_idempotency_key);

impl EventTypePattern {
    /// `order.*` matches every type below `order.`, at any depth, but not `order` itself.
    pub fn matches(&self, event_type: &EventType) -> bool {
        match self.0.strip_suffix('*') {
            Some(prefix) => event_type.0.starts_with(prefix),
            None => self.0 == event_type.0,
        }
    }
}

fn is_name(text: &str) -> bool {
    let starts_well = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    starts_well
        && text.len() <= MAX_NAME_LENGTH
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
}

fn is_event_type(text: &str) -> bool {
    text.len() <= MAX_EVENT_TYPE_LENGTH
        && text.split('.').all(|segment| {
            !segment.is_empty()
                && segment.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        })
}

fn is_pattern(text: &str) -> bool {
    text == "*"
        || text.len() <= MAX_EVENT_TYPE_LENGTH
            && text.strip_suffix(".*").map_or_else(|| is_event_type(text), is_event_type)
}

fn is_idempotency_key(text: &str) -> bool {
    (1..=MAX_IDEMPOTENCY_KEY_LENGTH).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: FromStr<Err = Error>>(accepted: &[&str], refused: &[&str]) {
        for text in accepted {
            assert!(text.parse::<T>().is_ok(), "{text:?} should be accepted");
        }
        for text in refused {
            assert!(text.parse::<T>().is_err(), "{text:?} should be refused");
        }
    }

    #[test]
    fn names() {
        let longest = "a".repeat(MAX_NAME_LENGTH);
        let too_long = "a".repeat(MAX_NAME_LENGTH + 1);
        check::<Name>(
            &["acme", "a", "0", "orders-to-warehouse", "a_b", &longest],
            &["", "-a", "_a", "Acme", "a b", "a/b", "a.b", "ä", "a\0", "..", &too_long],
        );
    }

    #[test]
    fn event_types() {
        let longest = "a".repeat(MAX_EVENT_TYPE_LENGTH);
        let too_long = "a".repeat(MAX_EVENT_TYPE_LENGTH + 1);
        check::<EventType>(
            &["user.created", "v1.user_created", "a", "Order-2.X", &longest],
            &[
                "",
                " ",
                "user.",
                ".user",
                "a..b",
                "user\0",
                "../x",
                "a';drop table x--",
                "a%0d%0aX:1",
                "*",
                "ä",
                &too_long,
            ],
        );
    }

    #[test]
    fn patterns() {
        check::<EventTypePattern>(
            &["*", "order.*", "order.created", "a.b.*"],
            &["", "**", "order*", "*.created", ".*", "a.*.b"],
        );
        for (pattern, event_type, expected) in [
            ("*", "order.created", true),
            ("order.*", "order.created", true),
            ("order.*", "order.line.added", true),
            ("order.*", "order", false),
            ("order.*", "orders.created", false),
            ("order.created", "order.created", true),
            ("order.created", "order.created2", false),
        ] {
            let parsed: EventTypePattern = pattern.parse().expect("pattern");
            let event_type: EventType = event_type.parse().expect("event type");
            assert_eq!(parsed.matches(&event_type), expected, "{pattern} on {event_type}");
        }
    }

    #[test]
    fn idempotency_keys() {
        let too_long = "k".repeat(MAX_IDEMPOTENCY_KEY_LENGTH + 1);
        check::<IdempotencyKey>(
            &["order-42-created", "!", "a:b/c"],
            &["", " ", "a b", "a\tb", "ä", "a\0b", &too_long],
        );
    }
}
