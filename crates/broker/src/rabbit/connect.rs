//! Where the broker is, and how it is reached.

use std::{fmt, time::Duration};

use lapin::{
    Connection, ConnectionProperties,
    tcp::OwnedTLSConfig,
    uri::{AMQPScheme, AMQPUri},
};

use super::{Error, bounded};

/// Longest wait for an answer of any kind.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Without a sign of life for two of these a connection is given up, on both sides.
const HEARTBEAT_SECONDS: u16 = 10;
/// Between two tries to connect: twice as long each time, and a random part of that, so that a fleet does not come at once.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The broker's address with its credentials, which are shown nowhere.
#[derive(Clone)]
pub struct Address {
    uri: AMQPUri,
    authorities_pem: Option<String>,
}

/// Why a text is not the address of a broker. Says nothing of what was given, since that holds a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a URL such as amqps://USER:PASSWORD@HOST:5671/VHOST")]
pub struct BadAddress;

impl Address {
    /// `authorities_pem`: further ones that an `amqps` broker's certificate may come from, beside the system's.
    ///
    /// # Errors
    /// The URL is none of a broker.
    pub fn new(url: &str, authorities_pem: Option<String>) -> Result<Self, BadAddress> {
        let mut uri: AMQPUri = url.parse().map_err(|_| BadAddress)?;
        if uri.authority.host.is_empty() {
            return Err(BadAddress);
        }
        uri.query.heartbeat = Some(HEARTBEAT_SECONDS);
        uri.query.connection_timeout = u64::try_from(ANSWER_TIMEOUT.as_millis()).ok();
        Ok(Self { uri, authorities_pem })
    }

    pub const fn is_encrypted(&self) -> bool {
        match self.uri.scheme {
            AMQPScheme::AMQP => false,
            AMQPScheme::AMQPS => true,
        }
    }

    pub(super) async fn connect(&self, purpose: &str) -> Result<Connection, Error> {
        let properties =
            ConnectionProperties::default().with_connection_name(format!("postrider {purpose}").into());
        let tls = OwnedTLSConfig { identity: None, cert_chain: self.authorities_pem.clone() };
        let runtime = lapin::runtime::default_runtime()?;
        bounded(Connection::connect_uri_with_config(self.uri.clone(), properties, tls, runtime)).await
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.uri.scheme {
            AMQPScheme::AMQP => "amqp",
            AMQPScheme::AMQPS => "amqps",
        };
        let (host, port) = (&self.uri.authority.host, self.uri.authority.port);
        write!(formatter, "{scheme}://{host}:{port}/{}", self.uri.vhost)
    }
}

/// How long to wait before the next try.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(super) const fn reset(&mut self) {
        self.failures = 0;
    }

    pub(super) fn next(&mut self) -> Duration {
        let longest = FIRST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        let mut chance = [0];
        // Without chance the tries of a fleet come at the same time, which is no reason to make none.
        let _ = getrandom::fill(&mut chance);
        longest / 2 + longest.mul_f64(f64::from(chance[0]) / 512.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_brokers_and_shows_no_password() {
        let address = Address::new("amqps://me:s3cret@broker.example:5671/orders", None).expect("an address");
        assert_eq!(format!("{address:?}"), "amqps://broker.example:5671/orders");
        for text in ["", "broker", "http://broker.example", "amqp://me:pass@host:port"] {
            assert_eq!(Address::new(text, None).err(), Some(BadAddress), "{text}");
        }
    }

    #[test]
    fn pauses_grow_up_to_a_bound_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::default();
        assert!(backoff.next() <= FIRST_PAUSE);
        let pauses: Vec<Duration> = (0..40).map(|_| backoff.next()).collect();
        assert!(pauses.iter().all(|pause| (FIRST_PAUSE / 2..=LONGEST_PAUSE).contains(pause)), "{pauses:?}");
        assert!(pauses.iter().rev().take(10).all(|pause| *pause >= LONGEST_PAUSE / 2), "{pauses:?}");
        backoff.reset();
        assert!(backoff.next() <= FIRST_PAUSE);
    }
}
