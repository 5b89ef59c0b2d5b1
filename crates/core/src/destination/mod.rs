//! Where a request goes: an endpoint URL that passed the policy.
//!
//! The text is parsed by the `url` crate as browsers parse it (WHATWG), so every odd spelling of an address has already
//! become that address here and meets the same filter as a lookup's answer. Invariants: a [`Destination`] has no
//! credentials and no fragment; its query, which may hold a vendor's secret, is never printed.

mod name;

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use http::{HeaderValue, uri::PathAndQuery};
use url::Url;

use crate::address;

/// Longest URL in bytes.
pub const MAX_LENGTH: usize = 2048;

/// What the operator allows in URLs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UrlPolicy {
    /// Approved vendors put a secret into the query; otherwise it is refused.
    pub allow_query: bool,
    /// Development only: `http://` to a loopback address or `localhost`, and the name `localhost` at all. Goes with
    /// [`address::Policy::allow_loopback`].
    pub allow_loopback_http: bool,
}

/// Why a URL is refused. The texts say what would be accepted and never repeat a path or query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("a URL has at most {MAX_LENGTH} bytes")]
    TooLong,
    #[error("a URL has no spaces, control characters or backslashes")]
    Characters,
    #[error("a URL starts with `https://` and a host, such as `https://example.com/hooks`")]
    Scheme,
    #[error("the URL cannot be parsed: {0}")]
    Syntax(#[from] url::ParseError),
    #[error("a URL carries no user name or password; use a header")]
    Credentials,
    #[error("a URL has no fragment (`#…`): it would never be sent")]
    Fragment,
    #[error("a URL has no query (`?…`) unless the operator allows it for approved vendors")]
    Query,
    #[error("port 0 cannot be connected to")]
    Port,
    #[error("the host is not a public domain name: {0}")]
    Name(&'static str),
    #[error(transparent)]
    Address(#[from] address::Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Only with [`UrlPolicy::allow_loopback_http`].
    Http,
    Https,
}

impl Scheme {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// In lower case and Punycode, without a trailing dot. Each address it resolves to needs [`address::check`].
    Name(Arc<str>),
    /// Passed [`address::check`] when it was parsed.
    Address(IpAddr),
}

/// What connections are shared by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    pub scheme: Scheme,
    pub host: Host,
    pub port: u16,
}

/// A parsed and allowed endpoint URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Destination {
    origin: Origin,
    path_and_query: PathAndQuery,
    host_header: HeaderValue,
}

impl Destination {
    /// Parses a URL and applies both policies to it. A name's addresses are checked when it is resolved.
    pub fn parse(text: &str, url: &UrlPolicy, addresses: &address::Policy) -> Result<Self, Refusal> {
        check_text(text, *url)?;
        let parsed = Url::parse(text)?;
        let scheme = match parsed.scheme() {
            "https" => Scheme::Https,
            "http" => Scheme::Http,
            _ => return Err(Refusal::Scheme),
        };
        let (host, is_local) = match parsed.host() {
            Some(url::Host::Domain(domain)) => {
                let (domain, is_local) = name::check(domain, *url, addresses)?;
                (Host::Name(domain.into()), is_local)
            }
            Some(url::Host::Ipv4(literal)) => checked(literal.into(), addresses)?,
            Some(url::Host::Ipv6(literal)) => checked(literal.into(), addresses)?,
            None => return Err(Refusal::Scheme),
        };
        if scheme == Scheme::Http && !(url.allow_loopback_http && is_local) {
            return Err(Refusal::Scheme);
        }
        let port = parsed.port().unwrap_or(scheme.default_port());
        if port == 0 {
            return Err(Refusal::Port);
        }
        let path_and_query = &parsed[url::Position::BeforePath..url::Position::AfterQuery];
        let path_and_query = PathAndQuery::try_from(path_and_query).map_err(|_| Refusal::Characters)?;
        let origin = Origin { scheme, host, port };
        let host_header = HeaderValue::try_from(origin.authority()).map_err(|_| Refusal::Characters)?;
        Ok(Self { origin, path_and_query, host_header })
    }

    /// Scheme, host and port.
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// What the request line names; not for logs, since a query may hold a secret.
    pub const fn path_and_query(&self) -> &PathAndQuery {
        &self.path_and_query
    }

    /// The value of `Host` (RFC 9110 section 7.2): host and, unless it is the scheme's own, port.
    pub const fn host_header(&self) -> &HeaderValue {
        &self.host_header
    }

    /// The whole URL with its query: for the database, never for logs or reads.
    pub fn to_stored(&self) -> String {
        format!("{}{}", self.origin, self.path_and_query)
    }
}

/// Shows the URL without its query.
impl fmt::Display for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", self.origin, self.path_and_query.path())
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Destination({self})")
    }
}

impl Origin {
    fn authority(&self) -> String {
        if self.port == self.scheme.default_port() {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}", self.scheme.as_str(), self.authority())
    }
}

/// As in a URL: an IPv6 address stands in brackets.
impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(formatter),
            Self::Address(IpAddr::V6(address)) => write_bracketed(*address, formatter),
        }
    }
}

fn write_bracketed(address: Ipv6Addr, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(formatter, "[{address}]")
}

fn checked(literal: IpAddr, addresses: &address::Policy) -> Result<(Host, bool), Refusal> {
    address::check(addresses, literal)?;
    Ok((Host::Address(literal), literal.to_canonical().is_loopback()))
}

/// What the parser would silently mend or drop is refused before it gets there, so that two parsers cannot read one
/// text differently.
fn check_text(text: &str, policy: UrlPolicy) -> Result<(), Refusal> {
    if text.len() > MAX_LENGTH {
        return Err(Refusal::TooLong);
    }
    if text.chars().any(|character| character.is_control() || character.is_whitespace() || character == '\\')
    {
        return Err(Refusal::Characters);
    }
    let (scheme, rest) = text.split_once("://").ok_or(Refusal::Scheme)?;
    let is_http = ["https", "http"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    if !is_http || rest.is_empty() || rest.starts_with(['/', '?', '#', ':']) {
        return Err(Refusal::Scheme);
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(Refusal::Credentials);
    }
    if rest.contains('#') {
        return Err(Refusal::Fragment);
    }
    if rest.contains('?') && !policy.allow_query {
        return Err(Refusal::Query);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
