//! The registry: one file in which the operator declares the approved endpoints of tenants, and what applying it would
//! change.
//!
//! | module | its part |
//! |---|---|
//! | `file` | the file's text, read strictly: unknown keys, repeated keys, anchors and whatever is too large are refused |
//! | `strict` | values that stand for nothing but what they say: no quoted numbers, nothing named twice |
//! | `spelling` | what the values no longer show: tags, and numbers in other than decimal digits |
//! | `check` | what the text says, checked by the same rules as what the API is given |
//! | `change` | the difference between what is and what is declared |
//!
//! Invariant: the file says everything there is to say about the approved endpoints of the tenants that it names, and
//! nothing about other tenants. A refusal, a difference and a document repeat no header value and no query.

mod change;
mod check;
mod document;
mod file;
mod spelling;
mod strict;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    num::NonZeroU16,
    time::Duration,
};

use zeroize::Zeroizing;

pub use self::{
    change::{Change, Field, Kind, chosen, diff},
    document::document,
};
use crate::{
    address, bucket::Rate, destination::UrlPolicy, header::CustomHeaders, method::Method, name::Name,
    retry::Policy, success_codes::SuccessCodes,
};

/// Longest file, in bytes.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;
/// Most endpoints of a file: all that it changes is changed in one transaction.
pub const MAX_ENDPOINTS: usize = 1_000;
/// Most tenants of a file.
pub const MAX_TENANTS: usize = 1_000;
/// Most applications that may address one endpoint.
pub const MAX_APPLICATIONS: usize = 100;

/// Approved endpoints by tenant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Registry {
    pub tenants: BTreeMap<Name, Endpoints>,
}

/// The approved endpoints of one tenant.
pub type Endpoints = BTreeMap<Name, Endpoint>;

/// An approved endpoint: all that the registry says of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoint {
    /// As a [`Destination`](crate::destination::Destination) is written: without its query.
    pub url: String,
    pub query: Option<Query>,
    pub allow_query: bool,
    pub method: Method,
    pub success_codes: SuccessCodes,
    pub retry: Policy,
    pub rate: Option<Rate>,
    pub max_in_flight: NonZeroU16,
    pub timeout: Duration,
    pub headers: CustomHeaders,
    /// The name of the tenant's credential that requests carry.
    pub credential: Option<Name>,
    /// The applications that may address it.
    pub applications: BTreeSet<Name>,
}

/// A URL's query, which may hold a vendor's secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Query(Zeroizing<String>);

impl Endpoint {
    /// Scheme, host and port: where requests go, whatever they ask for there.
    fn origin(&self) -> &str {
        let path =
            self.url.find("://").and_then(|at| self.url[at + 3..].find('/').map(|slash| at + 3 + slash));
        &self.url[..path.unwrap_or(self.url.len())]
    }
}

impl Query {
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// To be sealed or sent, never to be shown.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Query {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Query(redacted)")
    }
}

/// What URLs are checked by. Whether a query is allowed says each endpoint.
#[derive(Debug, Clone, Copy)]
pub struct Policies<'a> {
    pub url: UrlPolicy,
    pub addresses: &'a address::Policy,
}

/// Why a file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// Counted from 1; `None` where it is about the file as a whole.
    pub line: Option<u64>,
    /// Where in the file, such as `tenants.acme.endpoints.sms.url`; empty for the file as a whole.
    pub path: String,
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(formatter, "line {line}: ")?;
        }
        if !self.path.is_empty() {
            write!(formatter, "{}: ", self.path)?;
        }
        formatter.write_str(&self.reason)
    }
}

impl Registry {
    /// Reads a file.
    pub fn parse(text: &str, policies: Policies<'_>) -> Result<Self, Refusal> {
        if text.len() > MAX_FILE_BYTES {
            return Err(Refusal::whole(format!("the file has at most {MAX_FILE_BYTES} bytes")));
        }
        check::registry(file::read(text)?, policies)
    }
}

impl Refusal {
    fn whole(reason: impl Into<String>) -> Self {
        Self { line: None, path: String::new(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests;
