//! The listening socket and its connections.
//!
//! Invariant: nobody holds anything without a bound. A head that is slow or large, a connection beyond the limit, an idle
//! one: each has its limit here; bodies have theirs in the HTTP surface. And no answer is lost because its connection
//! ends while the client is still sending. Where a request ends is beyond doubt, or it is refused.

mod wire;

use std::{
    convert::Infallible,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body};
use futures::TryFutureExt as _;
use http::{Request, Response, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use postrider_api::address::Peer;
use postrider_engine::supervisor::Shutdown;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};
use tower::ServiceExt;

use self::wire::Wire;

/// Connections served at once; later ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 4_096;
/// How long a client may take to send a request's head, and to stay idle between two.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest request line and headers, in bytes; beyond it the answer is `431`.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Most headers of one request; beyond it the answer is `431`.
const MAX_HEADERS: usize = 100;
/// Pause after a failed `accept`, which is mostly a want of file descriptors that passes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long an ended connection is read on for a client that is still sending, and has yet to read its answer.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// Most bytes of that: twice the largest body that is taken. It costs no memory, and whoever sends a large batch too fast
/// is to learn when to send it again.
const LINGER_BYTES: u64 = 16 * 1024 * 1024;
/// Once the drain has begun: how long the rest of a head, or room for the rest of an answer, is waited for.
const GOODBYE: Duration = Duration::from_secs(5);

/// Serves until the drain; then stops accepting and lets requests in hand finish.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: Shutdown,
) -> Result<(), Infallible> {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    while !shutdown.is_draining() {
        let accepted = tokio::select! {
            () = shutdown.draining() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, peer, place)) => {
                let (router, shutdown) = (router.clone(), shutdown.clone());
                connections.spawn(async move {
                    serve_connection(stream, peer, router, &shutdown).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, Peer, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    // An answer is one small write: waiting for more to send with it would only add latency.
    stream.set_nodelay(true)?;
    Ok((stream, Peer(peer.ip()), place))
}

async fn serve_connection(stream: TcpStream, peer: Peer, router: Router, shutdown: &Shutdown) {
    let says_close = Arc::new(AtomicBool::new(false));
    let is_answering = Arc::new(AtomicBool::new(false));
    let service = {
        let (says_close, is_answering) = (Arc::clone(&says_close), Arc::clone(&is_answering));
        service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer);
            let (says_close, is_answering) = (Arc::clone(&says_close), Arc::clone(&is_answering));
            is_answering.store(true, Ordering::Relaxed);
            router.clone().oneshot(request).inspect_ok(move |response: &Response<Body>| {
                says_close.fetch_or(response.headers().contains_key(header::CONNECTION), Ordering::Relaxed);
                is_answering.store(false, Ordering::Relaxed);
            })
        })
    };
    let wire = Wire::new(stream);
    let written = wire.written();
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(wire), service);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = shutdown.draining() => {
            Pin::new(&mut connection).graceful_shutdown();
            loop {
                let before = written.load(Ordering::Relaxed);
                match timeout(GOODBYE, &mut connection).await {
                    Ok(ended) => break ended,
                    Err(_) if is_answering.load(Ordering::Relaxed) => {}
                    Err(_) if written.load(Ordering::Relaxed) > before => {}
                    // Whoever sends a head byte by byte, or does not read, holds up the end of nothing.
                    Err(_) => return,
                }
            }
        }
    };
    if let Err(error) = &ended {
        // Clients break off all the time; it matters only to someone who looks for it.
        tracing::debug!(%error, "a connection ended early");
    }
    // A request whose body was not read says so in its answer; a head that cannot be read has no end at all. Whoever sent
    // neither has said everything, and is not waited for.
    if says_close.load(Ordering::Relaxed) || ended.is_err_and(|error| error.is_parse()) {
        linger(connection.into_parts().io.into_inner().into_inner()).await;
    }
}

/// Ends a connection so that its last answer is read: closing it under what the client still sends would reset it, and
/// a reset takes with it what the client has not read yet (RFC 9112, section 9.6).
async fn linger(mut stream: TcpStream) {
    // It fails only where the client has gone already.
    let _ = stream.shutdown().await;
    let mut rest = stream.take(LINGER_BYTES);
    let _ = timeout(LINGER_TIME, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
}
