//! Access tokens: fetched when one is needed, kept while they are good, and asked for once however many wait.
//!
//! Invariant: a token endpoint gets one request at a time from this process for each credential, and after a failure
//! none until a pause is over. A request belongs to nobody: it goes on when the delivery that first wanted the token
//! gives up, so that a short timeout there does not make it begin anew for ever.

use std::{
    collections::HashMap,
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use http::HeaderValue;
use postrider_core::{
    credential::Granted,
    id::CredentialId,
    retry::{Failure, FailureKind, RetryAfter},
};
use tokio_util::task::TaskTracker;

use super::Client;
use crate::{
    clock::Clock,
    transport::{Fetched, Outgoing},
};

/// Most credentials whose tokens are kept; beyond that the cache starts afresh.
const MAX_CREDENTIALS: usize = 10_000;
/// Pause after a failed request; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(16);
/// Longest pause that a token endpoint may ask for itself.
const MAX_ASKED_PAUSE: Duration = Duration::from_secs(60);
/// A token that was fetched because the one before was refused is not given up for a refusal within this time: a
/// receiver that refuses every token does not make us fetch one per delivery.
pub const TRUST_IN_REPLACEMENT: Duration = Duration::from_secs(30);

/// An access token.
#[derive(Debug, Clone)]
pub struct Token {
    /// The value of `Authorization`, marked sensitive.
    pub authorization: HeaderValue,
    /// Tells it from the credential's other tokens.
    pub serial: u64,
}

type Flight = Shared<BoxFuture<'static, Result<Token, Failure>>>;

/// The tokens of this process.
pub struct Tokens {
    clock: Arc<dyn Clock>,
    /// Where requests run; whoever drains waits for them, and each is bounded.
    tasks: TaskTracker,
    entries: Mutex<HashMap<CredentialId, (i64, Arc<Entry>)>>,
}

#[derive(Default)]
struct Entry(Mutex<State>);

#[derive(Default)]
struct State {
    kept: Option<Kept>,
    flight: Option<Flight>,
    failed: Option<Failed>,
    /// Failures since the last token.
    failures: u32,
    /// Tokens so far.
    serial: u64,
    /// The last token was refused, and the next one takes its place.
    is_replacing: bool,
}

struct Kept {
    token: Token,
    until: Duration,
    /// Until when a refusal of this token is not its fault.
    trusted_until: Duration,
}

struct Failed {
    failure: Failure,
    until: Duration,
}

impl Tokens {
    pub fn new(clock: Arc<dyn Clock>, tasks: TaskTracker) -> Self {
        Self { clock, tasks, entries: Mutex::default() }
    }

    /// A token that is good now. `fetch` sends the request for one, unless one is here or under way already.
    ///
    /// # Errors
    /// [`FailureKind::CredentialUnavailable`], in words that repeat nothing of what either side sent.
    pub async fn get<F, R>(&self, client: &Arc<Client>, fetch: F) -> Result<Token, Failure>
    where
        F: FnOnce(Outgoing) -> R,
        R: Future<Output = Result<Fetched, Failure>> + Send + 'static,
    {
        let entry = self.entry(client);
        let flight = {
            let mut state = entry.lock();
            let now = self.clock.monotonic();
            if let Some(flight) = &state.flight {
                flight.clone()
            } else if let Some(kept) = state.kept.as_ref().filter(|kept| now < kept.until) {
                return Ok(kept.token.clone());
            } else if let Some(failed) = state.failed.as_ref().filter(|failed| now < failed.until) {
                return Err(failed.failure.clone());
            } else {
                let request = fetch(client.request());
                let flight = self.fly(Arc::clone(client), Arc::clone(&entry), request);
                self.tasks.spawn(flight.clone());
                state.flight = Some(flight.clone());
                flight
            }
        };
        flight.await
    }

    /// The receiver refused a token. Tells whether the next attempt has another one to show.
    pub fn refused(&self, client: &Client, serial: u64) -> bool {
        let entry = {
            let entries = self.entries();
            let found = entries.get(&client.credential_id).filter(|(version, _)| *version == client.version);
            found.map(|(_, entry)| Arc::clone(entry))
        };
        // A credential that was replaced meanwhile has other tokens.
        let Some(entry) = entry else { return true };
        let mut state = entry.lock();
        let now = self.clock.monotonic();
        match &state.kept {
            Some(kept) if kept.token.serial == serial && now < kept.trusted_until => false,
            Some(kept) if kept.token.serial == serial => {
                state.kept = None;
                state.is_replacing = true;
                true
            }
            Some(_) | None => true,
        }
    }

    fn fly(
        &self,
        client: Arc<Client>,
        entry: Arc<Entry>,
        request: impl Future<Output = Result<Fetched, Failure>> + Send + 'static,
    ) -> Flight {
        let (clock, started) = (Arc::clone(&self.clock), self.clock.monotonic());
        let flight = async move {
            // Whoever waits for a shared future that panics does so for ever, and whoever comes later panics, too.
            let concluded = AssertUnwindSafe(async { read(request.await, &*clock) }).catch_unwind().await;
            let concluded = concluded.unwrap_or_else(|_| Err(Refused::by_a_panic()));
            let outcome = if concluded.is_ok() { "granted" } else { "failed" };
            metrics::counter!("postrider_token_requests_total", "outcome" => outcome).increment(1);
            if let Err(Refused { failure, .. }) = &concluded {
                tracing::warn!(
                    tenant_id = %client.tenant_id,
                    credential_id = %client.credential_id,
                    failure = failure.detail,
                    "an access token could not be fetched"
                );
            }
            entry.lock().land(concluded, started, clock.monotonic())
        };
        flight.boxed().shared()
    }

    /// The credential's entry. One of an older version than is known is nobody else's.
    fn entry(&self, client: &Client) -> Arc<Entry> {
        let mut entries = self.entries();
        match entries.get(&client.credential_id) {
            Some((version, entry)) if *version == client.version => return Arc::clone(entry),
            Some((version, _)) if *version > client.version => return Arc::default(),
            Some(_) | None => {}
        }
        if entries.len() >= MAX_CREDENTIALS {
            entries.clear();
        }
        let entry = Arc::<Entry>::default();
        entries.insert(client.credential_id, (client.version, Arc::clone(&entry)));
        entry
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<CredentialId, (i64, Arc<Entry>)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tokens").field("credentials", &self.entries().len()).finish_non_exhaustive()
    }
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A request is over, well or not.
    fn land(
        &mut self,
        concluded: Result<Granted, Refused>,
        started: Duration,
        now: Duration,
    ) -> Result<Token, Failure> {
        self.flight = None;
        match concluded {
            Ok(Granted { authorization, usable }) => {
                self.serial += 1;
                let token = Token { authorization, serial: self.serial };
                let trust = if self.is_replacing { TRUST_IN_REPLACEMENT } else { Duration::ZERO };
                // The token may have been made at any moment of the request.
                let until = started + usable;
                self.kept = Some(Kept { token: token.clone(), until, trusted_until: now + trust });
                (self.failed, self.failures, self.is_replacing) = (None, 0, false);
                Ok(token)
            }
            Err(Refused { failure, asked_pause }) => {
                let doublings = self.failures.min(8);
                self.failures = self.failures.saturating_add(1);
                let pause = FIRST_PAUSE.saturating_mul(1 << doublings).min(MAX_PAUSE);
                let pause = pause.max(asked_pause.min(MAX_ASKED_PAUSE));
                self.failed = Some(Failed { failure: failure.clone(), until: now + pause });
                Err(failure)
            }
        }
    }
}

/// Why a request brought no token, and how long the endpoint wants to be left alone.
struct Refused {
    failure: Failure,
    asked_pause: Duration,
}

impl Refused {
    /// What went wrong was reported where it did.
    fn by_a_panic() -> Self {
        Self { failure: unavailable("the request for one could not be made"), asked_pause: Duration::ZERO }
    }
}

/// Judges an answer; redirects are answers like others that hold no token.
fn read(fetched: Result<Fetched, Failure>, clock: &dyn Clock) -> Result<Granted, Refused> {
    let refused = |reason: String, asked: Option<RetryAfter>| Refused {
        failure: unavailable(&reason),
        asked_pause: asked.map(|asked| asked.wait(clock.now())).unwrap_or_default(),
    };
    let Fetched { answer, body } = fetched.map_err(|failure| {
        // Its words may name the host, which is part of the credential.
        refused(format!("the token endpoint could not be asked ({})", failure.kind.as_str()), None)
    })?;
    if !(200..=299).contains(&answer.status) {
        let reason = format!("the token endpoint answered {}", answer.status);
        return Err(refused(reason, answer.retry_after));
    }
    Granted::read(&body).map_err(|fault| refused(format!("the token endpoint's answer {fault}"), None))
}

/// The failure of an attempt that has no token to show.
pub(super) fn unavailable(reason: &str) -> Failure {
    Failure { kind: FailureKind::CredentialUnavailable, detail: format!("no access token: {reason}") }
}
