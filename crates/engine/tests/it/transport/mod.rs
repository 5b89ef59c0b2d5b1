//! The HTTP transport against raw receivers on loopback: what is written after a request is exactly what a test says.

mod faults;
mod guard;
mod headers;
mod reuse;
mod tls;

use std::{
    collections::{HashMap, VecDeque},
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use postrider_core::{
    address,
    destination::{Destination, UrlPolicy},
    id::TenantId,
    method::Method,
    retry::{Answer, Failure, FailureKind, Outcome},
};
use postrider_engine::{
    clock::Clock,
    transport::{Dial, Exchange, Http, Outgoing, Resolver, Settings, Transport as _},
};
use rustls::RootCertStore;
use uuid::Uuid;

/// For whom requests are, where it makes no difference.
const TENANT: TenantId = TenantId::from_uuid(Uuid::from_u128(1));
/// Long enough never to be reached on a working path.
const AMPLE: Duration = Duration::from_secs(20);

/// Serves each connection on a thread of its own with blocking I/O, so that a test controls every byte.
fn receiver(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("address");
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Answers every request of every connection with these bytes.
fn answering(bytes: impl Into<Vec<u8>>) -> SocketAddr {
    let bytes = bytes.into();
    receiver(move |mut stream| {
        while read_request(&mut stream).is_some() {
            let _ = stream.write_all(&bytes);
        }
    })
}

/// Reads one request; `None` at the end of the connection.
fn read_request(stream: &mut impl io::Read) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut byte = [0; 1];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&request).to_lowercase();
    let length = head.split("content-length: ").nth(1)?.split("\r\n").next()?.parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    request.extend(body);
    Some(request)
}

/// Waits until the other side has closed.
fn read_to_end(stream: &mut impl io::Read) {
    let _ = io::copy(stream, &mut io::sink());
}

/// A transport and the parts a test looks at.
struct Bench {
    http: Http,
    resolver: Arc<Names>,
    dial: Arc<Lines>,
    clock: Arc<SteppedClock>,
}

#[derive(Default)]
struct Setup {
    /// Successive answers of lookups by name; the last one stays.
    names: HashMap<String, VecDeque<Vec<IpAddr>>>,
    /// Where every connection really goes, so that public addresses can be used without leaving the machine.
    divert_to: Option<SocketAddr>,
    /// Connections never come about.
    is_blackhole: bool,
    roots: Option<RootCertStore>,
    /// Loopback is refused, as in production.
    is_strict: bool,
}

impl Setup {
    fn name(mut self, name: &str, answers: &[&[&str]]) -> Self {
        let parse = |answer: &&[&str]| answer.iter().map(|it| it.parse().expect("address")).collect();
        self.names.insert(name.to_owned(), answers.iter().map(parse).collect());
        self
    }

    fn build(self) -> Bench {
        let resolver = Arc::new(Names { answers: Mutex::new(self.names), lookups: AtomicUsize::new(0) });
        let lines =
            Lines { divert_to: self.divert_to, is_blackhole: self.is_blackhole, dialled: Mutex::default() };
        let (dial, clock) = (Arc::new(lines), Arc::new(SteppedClock::default()));
        let settings = Settings {
            addresses: address::Policy { allow_loopback: !self.is_strict, ..address::Policy::default() },
            roots: self.roots.unwrap_or_else(RootCertStore::empty),
            resolver: resolver.clone(),
            dial: dial.clone(),
            clock: clock.clone(),
        };
        Bench { http: Http::new(settings).expect("settings"), resolver, dial, clock }
    }
}

impl Bench {
    async fn post(&self, url: &str) -> Exchange {
        self.post_within(url, AMPLE).await
    }

    async fn post_within(&self, url: &str, timeout: Duration) -> Exchange {
        self.post_for(TENANT, url, timeout).await
    }

    async fn post_for(&self, tenant_id: TenantId, url: &str, timeout: Duration) -> Exchange {
        self.send_for(tenant_id, destination(url), timeout).await
    }

    async fn send(&self, destination: Destination) -> Exchange {
        self.send_for(TENANT, destination, AMPLE).await
    }

    async fn send_for(&self, tenant_id: TenantId, destination: Destination, timeout: Duration) -> Exchange {
        let (destination, headers) = (Arc::new(destination), http::HeaderMap::new());
        let body = "{}".into();
        let method = Method::Post;
        self.http.send(Outgoing { tenant_id, method, destination, headers, body, timeout }).await
    }
}

/// Parses without refusing loopback: the guard is what is tested here, not the URL policy.
fn destination(url: &str) -> Destination {
    let policy = UrlPolicy { allow_query: true, allow_loopback_http: true };
    let open = address::Policy { allowed: vec!["0.0.0.0/0".parse().expect("network")], allow_loopback: true };
    Destination::parse(url, &policy, &open).unwrap_or_else(|refusal| panic!("{url}: {refusal}"))
}

fn status(exchange: &Exchange) -> Option<u16> {
    match &exchange.outcome {
        Outcome::Answered(Answer { status, .. }) => Some(*status),
        Outcome::TokenRefused(_) | Outcome::Failed(_) => None,
    }
}

#[track_caller]
fn assert_failed(exchange: &Exchange, kind: FailureKind, detail: &str) {
    assert_eq!(exchange.outcome, Outcome::Failed(Failure { kind, detail: detail.to_owned() }));
}

#[derive(Debug)]
struct Names {
    answers: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    lookups: AtomicUsize,
}

impl Resolver for Names {
    fn resolve<'n>(&'n self, name: &'n str) -> BoxFuture<'n, io::Result<Vec<IpAddr>>> {
        self.lookups.fetch_add(1, Relaxed);
        let mut answers = self.answers.lock().expect("answers");
        let sequence = answers.get_mut(name).unwrap_or_else(|| panic!("nobody asks for {name}"));
        let answer = if sequence.len() > 1 { sequence.pop_front() } else { sequence.front().cloned() };
        Box::pin(async move { Ok(answer.unwrap_or_default()) })
    }
}

/// Records every address a connection was opened to.
#[derive(Debug)]
struct Lines {
    divert_to: Option<SocketAddr>,
    is_blackhole: bool,
    dialled: Mutex<Vec<SocketAddr>>,
}

impl Lines {
    fn dialled(&self) -> Vec<SocketAddr> {
        self.dialled.lock().expect("dialled").clone()
    }
}

impl Dial for Lines {
    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<tokio::net::TcpStream>> {
        self.dialled.lock().expect("dialled").push(address);
        let target = self.divert_to.unwrap_or(address);
        assert!(target.ip().is_loopback(), "no test leaves the machine: {target}");
        if self.is_blackhole {
            return Box::pin(std::future::pending());
        }
        Box::pin(tokio::net::TcpStream::connect(target))
    }
}

/// Stands still unless a test moves it.
#[derive(Debug, Default)]
struct SteppedClock(AtomicU64);

impl SteppedClock {
    fn advance(&self, duration: Duration) {
        self.0.fetch_add(u64::try_from(duration.as_millis()).expect("short"), Relaxed);
    }
}

impl Clock for SteppedClock {
    fn now(&self) -> time::OffsetDateTime {
        time::OffsetDateTime::UNIX_EPOCH
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Relaxed))
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}
