//! One exchange over HTTP/1.1: guard, connection, request, answer.

use std::{future::Future, net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::FutureExt as _;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, Uri,
    header::{CONTENT_LENGTH, HOST, RETRY_AFTER, USER_AGENT},
};
use http_body_util::Full;
use hyper::body::Incoming;
use postrider_core::{
    address,
    destination::Origin,
    retry::{Answer, Failure, FailureKind, Outcome, RetryAfter},
};
use rustls::RootCertStore;

use super::{
    Dial, Error, Exchange, Fetched, Guard, Outgoing, PRODUCT, Resolver, SystemDial, SystemResolver,
    Transport,
    connect::Connector,
    connection::{Broken, Connection},
    guard::Addresses,
    pool::{Pool, Route},
    tls,
};
use crate::clock::Clock;

/// Longest lookup, and longest time until a connection stands, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the rest of a body. It serves only to keep the connection.
const BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// What an [`Http`] is made of.
#[derive(Debug)]
pub struct Settings {
    pub addresses: address::Policy,
    /// Whom to trust; see [`super::roots`].
    pub roots: RootCertStore,
    pub resolver: Arc<dyn Resolver>,
    pub dial: Arc<dyn Dial>,
    pub clock: Arc<dyn Clock>,
}

impl Settings {
    /// The system's own resolver and network.
    pub fn of_the_system(addresses: address::Policy, roots: RootCertStore, clock: Arc<dyn Clock>) -> Self {
        Self { addresses, roots, resolver: Arc::new(SystemResolver), dial: Arc::new(SystemDial), clock }
    }
}

/// Sends over the network.
pub struct Http {
    guard: Arc<Guard>,
    connector: Connector,
    pool: Pool,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Http").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl Http {
    pub fn new(settings: Settings) -> Result<Self, Error> {
        let Settings { addresses, roots, resolver, dial, clock } = settings;
        let connector = Connector { dial, tls: tls::client_config(roots)?.into() };
        let guard = Arc::new(Guard::new(addresses, resolver, Arc::clone(&clock)));
        Ok(Self { guard, connector, pool: Pool::default(), clock })
    }

    /// The guard that every request passes, to ask it before an endpoint is saved.
    pub const fn guard(&self) -> &Arc<Guard> {
        &self.guard
    }

    async fn exchange(
        &self,
        request: Outgoing,
        deadline: Deadline<'_>,
        reconnected: &mut bool,
    ) -> Result<Answer, Failure> {
        let destination = Arc::clone(&request.destination);
        let origin = destination.origin();
        let route = Route { tenant_id: request.tenant_id, origin };
        let addresses = self.addresses(origin, deadline).await?;
        if let Some(connection) = self.pool.take(route, addresses.as_slice(), self.clock.monotonic()) {
            let message = message(&request, request.body.clone());
            match self.ask(route, connection, message, deadline).await? {
                Ok(answer) => return Ok(answer),
                // Closed by the receiver at the moment we wrote. That is no fault of either side, and the request is
                // most likely unread: it is sent once more, on a connection of its own.
                Err(Broken::Untouched) => *reconnected = true,
                Err(broken @ (Broken::Cut | Broken::TooLarge | Broken::NotHttp)) => return Err(broken.into()),
            }
        }
        let connection = self.connect(origin, addresses.as_slice(), deadline).await?;
        let message = message(&request, request.body.clone());
        self.ask(route, connection, message, deadline).await?.map_err(Failure::from)
    }

    async fn fetch_whole(&self, request: Outgoing, deadline: Deadline<'_>) -> Result<Fetched, Failure> {
        let origin = request.destination.origin();
        let addresses = self.addresses(origin, deadline).await?;
        // What a kept connection may still have in it would be read as this answer.
        let mut connection = self.connect(origin, addresses.as_slice(), deadline).await?;
        let message = message(&request, request.body.clone());
        let asked = deadline.bound(Duration::MAX, connection.request(message)).await.ok_or_else(late)?;
        let response = asked?;
        let answer = answer(&response);
        let body =
            deadline.bound(Duration::MAX, connection.read(response.into_body())).await.ok_or_else(late)??;
        Ok(Fetched { answer, body })
    }

    async fn addresses(&self, origin: &Origin, deadline: Deadline<'_>) -> Result<Addresses, Failure> {
        if let Some(known) = self.guard.known(origin) {
            return known;
        }
        // Boxed, as what follows a lookup is: rare, and large enough to be felt wherever a delivery's future is moved.
        Box::pin(deadline.bound(CONNECT_TIMEOUT, self.guard.addresses(origin)))
            .await
            .ok_or_else(unresolved)?
    }

    async fn connect(
        &self,
        origin: &Origin,
        addresses: &[IpAddr],
        deadline: Deadline<'_>,
    ) -> Result<Box<Connection>, Failure> {
        Box::pin(self.connector.connect(origin, addresses, deadline.left().min(CONNECT_TIMEOUT))).await
    }

    /// Sends the request over a connection, and keeps the connection if it can be used again. The outer error is final.
    async fn ask(
        &self,
        route: Route<'_>,
        mut connection: Box<Connection>,
        message: Request<Full<Bytes>>,
        deadline: Deadline<'_>,
    ) -> Result<Result<Answer, Broken>, Failure> {
        let asked = deadline.bound(Duration::MAX, connection.request(message)).await.ok_or_else(late)?;
        let response = match asked {
            Ok(response) => response,
            Err(broken) => return Ok(Err(broken)),
        };
        let answer = answer(&response);
        let mut body = response.into_body();
        let is_reusable = match connection.finish_now(&mut body) {
            Some(is_reusable) => is_reusable,
            None => deadline.bound(BODY_TIMEOUT, connection.finish(&mut body)).await.unwrap_or(false),
        };
        if is_reusable {
            self.pool.put(route, connection, self.clock.monotonic());
        }
        Ok(Ok(answer))
    }
}

impl Transport for Http {
    async fn send(&self, request: Outgoing) -> Exchange {
        let start = self.clock.monotonic();
        let deadline = Deadline { clock: &*self.clock, at: start.saturating_add(request.timeout) };
        let mut reconnected = false;
        let outcome = match self.exchange(request, deadline, &mut reconnected).await {
            Ok(answer) => Outcome::Answered(answer),
            Err(failure) => Outcome::Failed(failure),
        };
        Exchange { outcome, latency: self.clock.monotonic().saturating_sub(start), reconnected }
    }

    async fn fetch(&self, request: Outgoing) -> Result<Fetched, Failure> {
        let at = self.clock.monotonic().saturating_add(request.timeout);
        self.fetch_whole(request, Deadline { clock: &*self.clock, at }).await
    }

    /// Closes connections that were kept too long.
    fn tidy(&self) {
        self.pool.sweep(self.clock.monotonic());
    }
}

/// When an exchange must be over, on the monotonic clock.
#[derive(Clone, Copy)]
struct Deadline<'c> {
    clock: &'c dyn Clock,
    at: Duration,
}

impl Deadline<'_> {
    fn left(self) -> Duration {
        self.at.saturating_sub(self.clock.monotonic())
    }

    /// Waits for `work` until the deadline, but not longer than `at_most`. Timers of the runtime are used here because
    /// the network keeps real time.
    ///
    /// No `async fn`: that would have room for `work` twice.
    fn bound<F: Future>(
        self,
        at_most: Duration,
        work: F,
    ) -> impl Future<Output = Option<F::Output>> + use<F> {
        tokio::time::timeout(self.left().min(at_most), work).map(Result::ok)
    }
}

/// Host and product are ours, whatever the caller set, and `Host` comes first, as RFC 9110 section 7.2 wants.
fn message(outgoing: &Outgoing, body: Bytes) -> Request<Full<Bytes>> {
    let Outgoing { destination, headers: given, .. } = outgoing;
    let mut headers = HeaderMap::with_capacity(given.len() + 3);
    headers.insert(HOST, destination.host_header().clone());
    headers.insert(USER_AGENT, HeaderValue::from_static(PRODUCT));
    for (name, value) in given {
        if name != HOST && name != USER_AGENT {
            headers.append(name, value.clone());
        }
    }
    if body.is_empty() {
        // hyper adds the length of every body but this one, and RFC 9110 section 8.6 wants it with these methods.
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let mut message = Request::new(Full::new(body));
    *message.method_mut() = match outgoing.method {
        postrider_core::method::Method::Post => Method::POST,
        postrider_core::method::Method::Put => Method::PUT,
        postrider_core::method::Method::Patch => Method::PATCH,
    };
    *message.uri_mut() = Uri::from(destination.path_and_query().clone());
    *message.headers_mut() = headers;
    message
}

fn late() -> Failure {
    Failure { kind: FailureKind::Timeout, detail: "no answer in time".to_owned() }
}

fn unresolved() -> Failure {
    Failure { kind: FailureKind::Dns, detail: "the host name was not resolved in time".to_owned() }
}

fn answer(response: &Response<Incoming>) -> Answer {
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    Answer { status: response.status().as_u16(), retry_after: retry_after.and_then(RetryAfter::parse) }
}
