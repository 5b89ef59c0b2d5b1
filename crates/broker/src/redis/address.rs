//! Where Redis is, and how to log in there.

use std::{fmt, str::FromStr};

use redis::{ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo};

/// A Redis server. Holds its password and never shows it.
#[derive(Clone)]
pub struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_encrypted: bool,
    pub(super) login: RedisConnectionInfo,
}

/// Why a text names no Redis server that can be used. Says nothing of the text, which may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("is not a URL with the scheme `redis://` or `rediss://`")]
    Scheme,
    #[error("cannot be read as a URL of Redis")]
    Syntax,
    #[error("asks for a certificate that is not looked at: leave out what follows the `#`")]
    Unverified,
}

impl Address {
    /// Whether it is talked to under TLS.
    pub const fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }
}

impl FromStr for Address {
    type Err = Unusable;

    fn from_str(text: &str) -> Result<Self, Unusable> {
        if !["redis://", "rediss://"].iter().any(|scheme| text.starts_with(scheme)) {
            return Err(Unusable::Scheme);
        }
        if text.contains('#') {
            return Err(Unusable::Unverified);
        }
        let read = text.into_connection_info().map_err(|_| Unusable::Syntax)?;
        let (host, port, is_encrypted) = match read.addr() {
            ConnectionAddr::Tcp(host, port) => (host.clone(), *port, false),
            ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port, true),
            _ => return Err(Unusable::Scheme),
        };
        Ok(Self { host, port, is_encrypted, login: read.redis_settings().clone() })
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Address")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("is_encrypted", &self.is_encrypted)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_url_and_keeps_its_password_to_itself() {
        let check = |text: &str, expected: Result<(&str, u16, bool), Unusable>| {
            let read = text.parse::<Address>();
            let seen = read.as_ref().map(|read| (&*read.host, read.port, read.is_encrypted));
            assert_eq!(seen.map_err(|error| *error), expected, "{text}");
            assert!(!format!("{read:?}").contains("canary"), "{read:?}");
        };
        check("redis://cache.internal", Ok(("cache.internal", 6379, false)));
        check("redis://:canary@127.0.0.1:7000/3", Ok(("127.0.0.1", 7000, false)));
        check("rediss://postrider:canary@[::1]:6380", Ok(("::1", 6380, true)));
        check("rediss://cache.internal/#insecure", Err(Unusable::Unverified));
        check("unix:///run/canary.sock", Err(Unusable::Scheme));
        check("valkey://canary", Err(Unusable::Scheme));
        check("canary", Err(Unusable::Scheme));
        check("redis://:canary@", Err(Unusable::Syntax));
        check("redis://canary:canary@host:canary", Err(Unusable::Syntax));
        check("redis://host/canary", Err(Unusable::Syntax));
    }
}
