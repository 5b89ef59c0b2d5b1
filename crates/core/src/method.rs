//! With which HTTP method an endpoint is asked: one of those that carry a body and ask for something to be done.

use std::{fmt, str::FromStr};

/// `POST` unless the endpoint says otherwise. `GET`, `HEAD` and `DELETE` are absent: the body that was accepted is to
/// arrive, and theirs has no defined meaning (RFC 9110, section 9.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Method {
    #[default]
    Post,
    Put,
    Patch,
}

/// A word that names no method an endpoint may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a method is `POST`, `PUT` or `PATCH`")]
pub struct Unknown;

impl Method {
    pub const ALL: [Self; 3] = [Self::Post, Self::Put, Self::Patch];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
        }
    }
}

impl FromStr for Method {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        Self::ALL.into_iter().find(|method| method.as_str() == text).ok_or(Unknown)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_methods_with_a_body_are_known_and_only_in_capitals() {
        for method in Method::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        for text in ["", "post", "GET", "HEAD", "DELETE", "TRACE", "CONNECT", "POST ", "POST\r\n"] {
            assert_eq!(text.parse::<Method>(), Err(Unknown), "{text:?}");
        }
    }
}
