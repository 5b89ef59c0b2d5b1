//! The e-mail address that a person logs in with.
//!
//! Invariant: two spellings of one address are one value. It is kept in lower case, because nearly every mail service
//! ignores case and people do, too; other characters than ASCII are refused, because they can be spelt in several ways.

use std::{fmt, str::FromStr};

/// Longest address, in characters (RFC 5321, section 4.5.3.1.3, less the brackets around a path).
pub const MAX_LENGTH: usize = 254;
/// Longest part before the `@` (RFC 5321, section 4.5.3.1.1).
const MAX_LOCAL_LENGTH: usize = 64;
/// Longest label of a domain (RFC 1035, section 2.3.4).
const MAX_LABEL_LENGTH: usize = 63;

/// Why a text is not taken as an address. It never repeats the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an e-mail address has at most {MAX_LENGTH} ASCII characters and looks like `ada@example.com`; write other \
     characters of a domain as `xn--…`"
)]
pub struct Error;

/// An address in lower case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Email(Box<str>);

impl Email {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What stands before the `@`.
    pub fn local_part(&self) -> &str {
        self.0.split_once('@').map_or("", |(local, _)| local)
    }
}

impl FromStr for Email {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (local, domain) = text.split_once('@').ok_or(Error)?;
        if text.len() <= MAX_LENGTH && is_local(local) && is_domain(domain) {
            Ok(Self(text.to_ascii_lowercase().into()))
        } else {
            Err(Error)
        }
    }
}

/// Words joined by single dots (RFC 5322, section 3.2.3, `dot-atom-text`); quoted ones, which hardly anybody has, are
/// not taken.
fn is_local(text: &str) -> bool {
    let is_word_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte);
    text.len() <= MAX_LOCAL_LENGTH
        && text.split('.').all(|word| !word.is_empty() && word.bytes().all(is_word_byte))
}

fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=MAX_LABEL_LENGTH).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.split('.').all(is_label)
}

impl fmt::Display for Email {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Email {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

impl serde::Serialize for Email {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Email {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_other_texts_and_kept_in_lower_case() {
        let longest_local = "a".repeat(64);
        let longest_label = "b".repeat(63);
        let longest = format!("{longest_local}@{longest_label}.{longest_label}.{}", "c".repeat(61));
        assert_eq!(longest.len(), MAX_LENGTH);
        for (text, expected) in [
            ("ada@example.com", Some("ada@example.com")),
            ("Ada.Lovelace+post@Example.COM", Some("ada.lovelace+post@example.com")),
            ("root@localhost", Some("root@localhost")),
            ("x@xn--bcher-kva.example", Some("x@xn--bcher-kva.example")),
            (&longest, Some(longest.as_str())),
            (&format!("{longest}d"), None),
            (&format!("a{longest_local}@example.com"), None),
            (&format!("ada@b{longest_label}.com"), None),
            ("", None),
            ("ada", None),
            ("@example.com", None),
            ("ada@", None),
            ("ada@@example.com", None),
            ("ada@example@com", None),
            ("ada@.com", None),
            ("ada@example..com", None),
            ("ada@-a.com", None),
            (".ada@example.com", None),
            ("a..b@example.com", None),
            (" ada@example.com", None),
            ("ada@example.com\n", None),
            ("ada@example.com\0", None),
            ("\"a b\"@example.com", None),
            ("ada@bücher.example", None),
            ("\u{212a}@example.com", None),
        ] {
            assert_eq!(text.parse::<Email>().ok().as_ref().map(Email::as_str), expected, "{text:?}");
        }
    }
}
