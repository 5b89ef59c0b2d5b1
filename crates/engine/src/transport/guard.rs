//! Turns a host into addresses that requests may go to.
//!
//! All or nothing: if one address of a name is refused, the name is. An attacker who mixes a public and a private
//! address, or swaps one for the other between two lookups, gets no connection. A lookup's answer is used for
//! [`LOOKUP_LIFETIME`], so every attempt goes to an address that was found and checked within that time, and a busy
//! endpoint does not cost a lookup per request.

use std::{
    collections::HashMap,
    fmt::Debug,
    io,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use postrider_core::{
    address,
    destination::{Host, Origin, Scheme},
    retry::{Failure, FailureKind},
};

use crate::clock::Clock;

/// How long the answer of one lookup is used, good or bad.
pub(super) const LOOKUP_LIFETIME: Duration = Duration::from_secs(1);
/// Most names whose answers are kept.
const MAX_NAMES: usize = 10_000;

/// Looks names up.
pub trait Resolver: Debug + Send + Sync + 'static {
    /// All addresses of a name, IPv4 and IPv6, in the order to try them; empty where it has none.
    fn resolve<'n>(&'n self, name: &'n str) -> BoxFuture<'n, io::Result<Vec<IpAddr>>>;
}

/// The system's resolver (`getaddrinfo`).
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve<'n>(&'n self, name: &'n str) -> BoxFuture<'n, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Decides where requests may go. Whatever connects to a user's URL asks it first.
#[derive(Debug)]
pub struct Guard {
    policy: address::Policy,
    resolver: Arc<dyn Resolver>,
    clock: Arc<dyn Clock>,
    names: Mutex<HashMap<Arc<str>, Arc<Name>>>,
}

#[derive(Debug, Default)]
struct Name {
    /// Held during a lookup: the others wait for its answer instead of asking again.
    gate: tokio::sync::Mutex<()>,
    known: Mutex<Option<Known>>,
}

#[derive(Debug, Clone)]
struct Known {
    addresses: Result<Arc<[IpAddr]>, Failure>,
    until: Duration,
}

/// At least one address; all of them passed the filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Addresses {
    Literal(IpAddr),
    Found(Arc<[IpAddr]>),
}

impl Addresses {
    pub(super) fn as_slice(&self) -> &[IpAddr] {
        match self {
            Self::Literal(address) => std::slice::from_ref(address),
            Self::Found(addresses) => addresses,
        }
    }
}

impl Guard {
    pub fn new(policy: address::Policy, resolver: Arc<dyn Resolver>, clock: Arc<dyn Clock>) -> Self {
        Self { policy, resolver, clock, names: Mutex::default() }
    }

    /// Whether requests to this origin would be sent now: for checks at the time an endpoint is saved.
    ///
    /// Has no time limit of its own.
    pub async fn check(&self, origin: &Origin) -> Result<(), Failure> {
        self.addresses(origin).await.map(drop)
    }

    /// The origin's addresses, where that takes no lookup.
    pub(super) fn known(&self, origin: &Origin) -> Option<Result<Addresses, Failure>> {
        let known = match &origin.host {
            Host::Address(literal) => self.literal(*literal),
            Host::Name(name) => self.entry(name).fresh(self.clock.monotonic())?.map(Addresses::Found),
        };
        Some(known.and_then(|addresses| only_loopback_in_the_clear(origin, addresses)))
    }

    /// The origin's addresses, looked up where they are not known.
    pub(super) async fn addresses(&self, origin: &Origin) -> Result<Addresses, Failure> {
        let addresses = match &origin.host {
            Host::Address(literal) => self.literal(*literal)?,
            Host::Name(name) => Addresses::Found(self.look_up(name).await?),
        };
        only_loopback_in_the_clear(origin, addresses)
    }

    fn literal(&self, literal: IpAddr) -> Result<Addresses, Failure> {
        let checked = address::check(&self.policy, literal).map_err(|refusal| refused(refusal.to_string()));
        checked.map(|()| Addresses::Literal(literal))
    }

    async fn look_up(&self, name: &Arc<str>) -> Result<Arc<[IpAddr]>, Failure> {
        let entry = self.entry(name);
        if let Some(addresses) = entry.fresh(self.clock.monotonic()) {
            return addresses;
        }
        let _turn = entry.gate.lock().await;
        if let Some(addresses) = entry.fresh(self.clock.monotonic()) {
            return addresses;
        }
        let addresses = self.resolve(name).await;
        let until = self.clock.monotonic() + LOOKUP_LIFETIME;
        *entry.known.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Known { addresses: addresses.clone(), until });
        addresses
    }

    async fn resolve(&self, name: &str) -> Result<Arc<[IpAddr]>, Failure> {
        let unknown = |detail: &str| Failure { kind: FailureKind::Dns, detail: format!("{name}: {detail}") };
        let found = self.resolver.resolve(name).await.map_err(|error| unknown(&error.to_string()))?;
        if found.is_empty() {
            return Err(unknown("the name has no address"));
        }
        for address in &found {
            // The address stays out of the text: what a name means inside this network is not for everyone to read.
            address::check(&self.policy, *address).map_err(|refusal| {
                refused(format!("{name} leads to an address that is not public: {}", refusal.range))
            })?;
        }
        Ok(found.into())
    }

    fn entry(&self, name: &Arc<str>) -> Arc<Name> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = names.get(name) {
            return Arc::clone(entry);
        }
        if names.len() >= MAX_NAMES {
            let now = self.clock.monotonic();
            names.retain(|_, entry| entry.fresh(now).is_some());
            if names.len() >= MAX_NAMES {
                names.clear();
            }
        }
        Arc::clone(names.entry(Arc::clone(name)).or_default())
    }
}

impl Name {
    fn fresh(&self, now: Duration) -> Option<Result<Arc<[IpAddr]>, Failure>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().filter(|known| now < known.until).map(|known| known.addresses.clone())
    }
}

/// The URL policy lets plain HTTP through for this machine's own names only; where they lead is known here.
fn only_loopback_in_the_clear(origin: &Origin, addresses: Addresses) -> Result<Addresses, Failure> {
    let is_loopback = |address: &IpAddr| address.to_canonical().is_loopback();
    match origin.scheme {
        Scheme::Https => Ok(addresses),
        Scheme::Http if addresses.as_slice().iter().all(is_loopback) => Ok(addresses),
        Scheme::Http => Err(refused("plain HTTP is only for loopback addresses; use https://".to_owned())),
    }
}

fn refused(detail: String) -> Failure {
    Failure { kind: FailureKind::AddressRefused, detail }
}
