//! A scripted receiver that sees and sends exact bytes, in the test's own process.
//!
//! Invariant: a request is recorded before it is answered, and nothing here waits by the clock unless the answer says so
//! ([`Answer::trickle`], [`Answer::late`]). It speaks raw TCP rather than a library's HTTP, so that it can also misbehave.

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::answer::Step;
pub use crate::answer::{Answer, Gate};

/// Longest request head read, in bytes.
const MAX_HEAD_BYTES: usize = 256 * 1024;

/// One request, byte for byte.
#[derive(Debug, Clone)]
pub struct Request {
    /// The request line and the headers as they were sent, up to and with the empty line.
    pub head: Bytes,
    pub body: Bytes,
    /// Which connection it came on, counted from 1: equal numbers mean a reused connection.
    pub connection: u64,
}

impl Request {
    pub fn method(&self) -> &str {
        self.request_line().split(' ').next().unwrap_or_default()
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        self.request_line().split(' ').nth(1).unwrap_or_default()
    }

    /// Names and values in the order they were sent, with their letters as sent.
    pub fn headers(&self) -> Vec<(&str, &str)> {
        let lines = self.head_text().split("\r\n").skip(1);
        lines.filter_map(|line| line.split_once(':')).map(|(name, value)| (name, value.trim())).collect()
    }

    /// The first header of this name, compared without case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The `webhook-id` header: the delivery's id. Panics where there is none, as every delivery must carry it.
    pub fn webhook_id(&self) -> &str {
        self.header("webhook-id").expect("a delivery carries webhook-id")
    }

    fn request_line(&self) -> &str {
        self.head_text().split("\r\n").next().unwrap_or_default()
    }

    fn head_text(&self) -> &str {
        std::str::from_utf8(&self.head).expect("a request head is ASCII")
    }
}

type Decide = Box<dyn Fn(&Request) -> Answer + Send + Sync>;

/// A running receiver; stops when dropped.
pub struct Receiver {
    address: SocketAddr,
    is_tls: bool,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    requests: Mutex<Vec<Request>>,
    count: watch::Sender<usize>,
    queued: Mutex<VecDeque<Answer>>,
    otherwise: Mutex<Arc<Decide>>,
    connections: AtomicU64,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Receiver").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Receiver {
    /// Listens on a free loopback port and answers `200` until told otherwise.
    pub async fn start() -> Self {
        Self::listen(None).await
    }

    /// The same behind TLS; see [`crate::authority::Authority`] for a configuration.
    pub async fn start_tls(config: Arc<rustls::ServerConfig>) -> Self {
        Self::listen(Some(tokio_rustls::TlsAcceptor::from(config))).await
    }

    async fn listen(tls: Option<tokio_rustls::TlsAcceptor>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free loopback port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let always_ok: Decide = Box::new(|_| Answer::ok());
        let shared = Arc::new(Shared {
            requests: Mutex::default(),
            count: watch::Sender::new(0),
            queued: Mutex::default(),
            otherwise: Mutex::new(Arc::new(always_ok)),
            connections: AtomicU64::new(0),
        });
        let is_tls = tls.is_some();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, tls, Arc::clone(&shared)));
        Self { address, is_tls, shared, _tasks: tasks }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of a path, by address; behind TLS by the name `localhost`, which a certificate can carry.
    pub fn url(&self, path: &str) -> String {
        if self.is_tls {
            format!("https://localhost:{}{path}", self.address.port())
        } else {
            format!("http://{}{path}", self.address)
        }
    }

    /// The next requests get these answers, in order, before the standing answer applies again.
    pub fn queue(&self, answers: impl IntoIterator<Item = Answer>) {
        lock(&self.shared.queued).extend(answers);
    }

    /// The standing answer, for whatever finds the queue empty.
    pub fn answer_with(&self, decide: impl Fn(&Request) -> Answer + Send + Sync + 'static) {
        let decide: Decide = Box::new(decide);
        *lock(&self.shared.otherwise) = Arc::new(decide);
    }

    /// What has arrived, oldest first.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// Waits until at least `count` requests have arrived and returns all so far. Waits without end: the test runner's
    /// limit ends a test whose requests never come.
    pub async fn wait_for(&self, count: usize) -> Vec<Request> {
        let mut arrived = self.shared.count.subscribe();
        arrived.wait_for(|so_far| *so_far >= count).await.expect("the receiver outlives its waiters");
        self.requests()
    }

    /// How many connections were accepted.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn record(&self, request: &Request) -> Answer {
        let mut requests = lock(&self.requests);
        requests.push(request.clone());
        let queued = lock(&self.queued).pop_front();
        self.count.send_replace(requests.len());
        drop(requests);
        queued.unwrap_or_else(|| {
            let decide = Arc::clone(&lock(&self.otherwise));
            decide(request)
        })
    }
}

async fn accept(listener: TcpListener, tls: Option<tokio_rustls::TlsAcceptor>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("a loopback listener accepts");
        let _ = stream.set_nodelay(true);
        let number = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
        let (tls, shared) = (tls.clone(), Arc::clone(&shared));
        connections.spawn(async move {
            match tls {
                None => serve(stream, number, &shared).await,
                // A failed handshake is what some tests are about; the sender's side tells the story.
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, number, &shared).await;
                    }
                }
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve<S: Stream>(mut stream: S, connection: u64, shared: &Shared) {
    let mut buffer = Vec::new();
    while let Some((head, body)) = read_request(&mut stream, &mut buffer).await {
        let answer = shared.record(&Request { head, body, connection });
        for step in answer.into_steps() {
            match step {
                Step::Wait(gate) => gate.opened().await,
                Step::Pause(pause) => tokio::time::sleep(pause).await,
                Step::Send(bytes) => {
                    if stream.write_all(&bytes).await.is_err() || stream.flush().await.is_err() {
                        return;
                    }
                }
                Step::Close => {
                    let _ = stream.shutdown().await;
                    return;
                }
                Step::Reset => return stream.reset(),
                Step::Never => std::future::pending().await,
            }
        }
    }
}

/// Reads one request; `None` when the sender is done or breaks off.
async fn read_request<S: Stream>(stream: &mut S, buffer: &mut Vec<u8>) -> Option<(Bytes, Bytes)> {
    let head_length = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if buffer.len() > MAX_HEAD_BYTES || stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head: Vec<u8> = buffer.drain(..head_length).collect();
    let body_length = content_length(&head);
    while buffer.len() < body_length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body: Vec<u8> = buffer.drain(..body_length).collect();
    Some((head.into(), body.into()))
}

/// Deliveries always state their length; a request without one has no body.
fn content_length(head: &[u8]) -> usize {
    let text = String::from_utf8_lossy(head);
    let mut headers = text.split("\r\n").filter_map(|line| line.split_once(':'));
    let length = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    length.map_or(0, |(_, value)| value.trim().parse().expect("content-length is a number"))
}

trait Stream: AsyncRead + AsyncWrite + Unpin {
    /// Closes with RST instead of FIN.
    fn reset(self);
}

impl Stream for TcpStream {
    fn reset(self) {
        let _ = self.set_zero_linger();
    }
}

impl Stream for tokio_rustls::server::TlsStream<TcpStream> {
    fn reset(self) {
        let _ = self.get_ref().0.set_zero_linger();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn exchange(receiver: &Receiver, request: &str) -> String {
        let mut stream = TcpStream::connect(receiver.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    const POST: &str =
        "POST /hook?a=1 HTTP/1.1\r\nHost: x\r\nWebhook-Id:  dlv_1\r\nContent-Length: 3\r\n\r\nabc";

    #[tokio::test]
    async fn requests_are_kept_byte_for_byte_and_answered_in_order() {
        let receiver = Receiver::start().await;
        receiver.queue([Answer::status(503).header("Retry-After", "7").body("busy"), Answer::close()]);
        let pipelined = format!("{POST}{POST}");
        assert_eq!(
            exchange(&receiver, &pipelined).await,
            "HTTP/1.1 503 Service Unavailable\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy"
        );
        assert_eq!(exchange(&receiver, POST).await, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");

        let requests = receiver.wait_for(3).await;
        assert_eq!(requests.iter().map(|request| request.connection).collect::<Vec<_>>(), [1, 1, 2]);
        let request = &requests[0];
        assert_eq!([&request.head[..], &request.body[..]].concat(), POST.as_bytes());
        assert_eq!((request.method(), request.target()), ("POST", "/hook?a=1"));
        assert_eq!(request.headers()[1], ("Webhook-Id", "dlv_1"));
        assert_eq!(request.webhook_id(), "dlv_1");
    }

    #[tokio::test]
    async fn an_answer_waits_for_its_gate() {
        let receiver = Receiver::start().await;
        let gate = Gate::default();
        receiver.queue([Answer::status(204).after(&gate)]);
        let (answer, ()) = tokio::join!(exchange(&receiver, POST), async {
            receiver.wait_for(1).await;
            gate.open();
        });
        assert!(answer.starts_with("HTTP/1.1 204 No Content\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn the_standing_answer_may_look_at_the_request() {
        let receiver = Receiver::start().await;
        receiver.answer_with(|request| Answer::raw(format!("{} ?", request.target())));
        assert_eq!(exchange(&receiver, POST).await, "/hook?a=1 ?");
        receiver.queue([Answer::reset()]);
        assert_eq!(exchange(&receiver, POST).await, "");
    }
}
