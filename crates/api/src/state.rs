//! What the HTTP surface stands on. Everything comes in from outside, the clock and the network included; the
//! surface itself starts no task and keeps nothing between requests but counts, each of them bounded: of what it has in
//! hand, of refusals while the database is away, of failed logins, and of what is left of tenants' rates.

use std::{
    fmt,
    num::NonZeroU32,
    ops::Deref,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::extract::FromRequestParts;
use futures::future::BoxFuture;
use http::request::Parts;
use ipnet::IpNet;
use postrider_core::{
    address,
    destination::{Origin, UrlPolicy},
    limiter::{InProcess, Limiter},
    pepper::Peppers,
    queue::Queue,
    retry::Failure,
    seal::Keyring,
    session,
};
use postrider_store::{backlog, ingest::Entrance, outbox::Audience, owners::Logins, routing};
use sqlx::PgPool;
use time::OffsetDateTime;
use uuid::{ContextV7, Timestamp, Uuid};

use crate::{
    authenticate::OperatorToken,
    guard::InHand,
    health::OptionalDependency,
    limits::Looks,
    login::{Hashing, Throttle},
    outage::Outage,
    publish::{Budget, Places},
    refusals::Refusals,
};

/// Whether a request to an origin would be sent now: the guard that every request passes, its lookup included.
pub type CheckOrigin = dyn Fn(Origin) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync;

/// What the surface needs from the process around it.
pub struct Settings {
    /// Connections for everything but ingest.
    pub pool: PgPool,
    /// Who publishes under which token, and who gets their events.
    pub routing: Arc<routing::Cache>,
    /// Where accepted requests go. Its capacity is how many events may wait to be stored, of all applications: each of
    /// them has a place there until it is answered.
    pub ingest: Entrance,
    /// Seals signing secrets, custom headers and credentials.
    pub keyring: Arc<Keyring>,
    /// Turns tokens into the hashes they are stored under.
    pub peppers: Peppers,
    /// Signs and verifies the sessions of people who log in; without it, nobody can.
    pub sessions: Option<Arc<session::Keys>>,
    /// Where what was refused is noted for the audit log.
    pub refusals: Refusals,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Creates tenants; without one, nobody can.
    pub bootstrap_token: Option<OperatorToken>,
    /// Reads `/metrics`; without one, nobody can.
    pub metrics_token: Option<OperatorToken>,
    /// Which URLs an endpoint may have.
    pub url_policy: UrlPolicy,
    /// Which addresses a URL may name; `check_origin` holds names to the same.
    pub address_policy: address::Policy,
    pub check_origin: Arc<CheckOrigin>,
    /// The metrics in Prometheus' text format.
    pub render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
    pub build: Build,
    pub now: Arc<dyn Fn() -> OffsetDateTime + Send + Sync>,
    /// Time that only goes forward, from any beginning.
    pub monotonic: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// How fast tenants publish, where other processes share that; else this process counts alone.
    pub limiter: Option<Arc<dyn Limiter>>,
    /// What brings messages about what is ready to workers, where a broker is used.
    pub queue: Option<Arc<dyn Queue>>,
    /// What the process uses and can do without.
    pub optional: Vec<OptionalDependency>,
    /// Requests that may be worked on at once, those for health and metrics aside and logins apart; `None`: any number.
    pub max_requests_in_flight: Option<NonZeroU32>,
    /// Who may not publish for what waits to be sent; somebody else keeps it.
    pub gate: Arc<backlog::Gate>,
    /// Whether the process is on its way out: then it is not ready for new work.
    pub is_draining: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Which program this is.
#[derive(Debug, Clone, Copy)]
pub struct Build {
    pub version: &'static str,
    /// The commit it was built from, or `unknown`.
    pub commit: &'static str,
}

/// The surface's settings, shared by all requests. An extractor, too.
#[derive(Clone)]
pub struct State(Arc<Shared>);

struct Shared {
    settings: Settings,
    budget: Budget,
    places: Places,
    outage: Outage,
    limiter: Arc<dyn Limiter>,
    looks: Looks,
    in_hand: InHand,
    hashing: Hashing,
    throttle: Throttle,
    /// Tells ids of one millisecond apart, in order.
    counter: Mutex<ContextV7>,
}

impl From<Settings> for State {
    fn from(settings: Settings) -> Self {
        let counter = Mutex::new(ContextV7::new());
        // As many as the queue behind has, so that whoever holds a place finds room there.
        let places = Places::new(settings.ingest.max_capacity());
        let alone = || Arc::new(InProcess::new(Arc::clone(&settings.monotonic)));
        let limiter = settings.limiter.clone().unwrap_or_else(|| alone());
        Self(Arc::new(Shared {
            settings,
            budget: Budget::default(),
            places,
            outage: Outage::default(),
            limiter,
            looks: Looks::default(),
            in_hand: InHand::default(),
            hashing: Hashing::default(),
            throttle: Throttle::default(),
            counter,
        }))
    }
}

impl State {
    /// Bounds the bytes that publishers have in this process.
    pub(crate) fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// Shares the places among the events that wait to be stored.
    pub(crate) fn places(&self) -> &Places {
        &self.0.places
    }

    /// Keeps the log short while the database is away.
    pub(crate) fn outage(&self) -> &Outage {
        &self.0.outage
    }

    /// Hashes passwords, a bounded number at once.
    pub(crate) fn hashing(&self) -> &Hashing {
        &self.0.hashing
    }

    /// Slows down who guesses passwords.
    pub(crate) fn throttle(&self) -> &Throttle {
        &self.0.throttle
    }

    /// Whether people can log in.
    pub(crate) fn logins(&self) -> Logins {
        if self.sessions.is_some() { Logins::On } else { Logins::Off }
    }

    /// How fast tenants publish.
    pub(crate) fn limiter(&self) -> &dyn Limiter {
        &*self.0.limiter
    }

    /// Whether a broker is told what is ready, also while it is away.
    pub(crate) fn audience(&self) -> Audience {
        Audience::of(self.queue.as_ref())
    }

    /// When the rates of those who are refused were looked up.
    pub(crate) fn looks(&self) -> &Looks {
        &self.0.looks
    }

    /// How many requests are being worked on.
    pub(crate) fn in_hand(&self) -> &InHand {
        &self.0.in_hand
    }

    /// A fresh UUIDv7 by the settings' clock, for any kind of id. Those of one millisecond are in order, too.
    pub fn fresh_uuid(&self) -> Uuid {
        let now = (self.now)();
        // Before 1970 there is nothing to sort by.
        let seconds = u64::try_from(now.unix_timestamp()).unwrap_or_default();
        Uuid::new_v7(Timestamp::from_unix(&self.0.counter, seconds, now.nanosecond()))
    }
}

impl Deref for State {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.0.settings
    }
}

impl FromRequestParts<Self> for State {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(_parts: &mut Parts, state: &Self) -> Result<Self, Self::Rejection> {
        Ok(state.clone())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets stay out.
        formatter.debug_struct("Settings").field("build", &self.build).finish_non_exhaustive()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.settings.fmt(formatter)
    }
}
