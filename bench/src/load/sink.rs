//! The sink: a receiver that answers at once and notes when each event came. It has a thread of its own.
//!
//! | path | what it does |
//! |---|---|
//! | `/ok/N` | answers `200` and notes the event as received by endpoint N, counted from 0 |
//! | `/late/N` | the same, 50 milliseconds later |
//! | `/take` | counts the request and answers `200` at once |
//! | `/refuse` | counts the request and answers `400` at once |
//! | `/fail` | counts the request and answers `500` at once |
//! | `/hang` | counts the request and answers `200` after 30 seconds |

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinSet,
};

use super::{ledger::Ledger, message, wire::Incoming};
use crate::clock;

const LATE: Duration = Duration::from_millis(50);
const HANG: Duration = Duration::from_secs(30);
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const REFUSED: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
const FAILED: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";

/// A running sink. Dropping it closes its connections.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Sink {
    pub(crate) fn start(ledger: Arc<Ledger>) -> anyhow::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("sink".to_owned()).spawn(move || {
            runtime.block_on(async {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
                let listener = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
                match listener {
                    Ok((address, listener)) if tell.send(Ok(address)).is_ok() => {
                        tokio::select! {
                            () = accept(listener, ledger) => {}
                            _ = stopped => {}
                        }
                    }
                    Ok(_) => {}
                    Err(error) => drop(tell.send(Err(error))),
                }
            });
        })?;
        let address = told.recv().context("the sink did not start")??;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the sink has panicked");
        }
    }
}

async fn accept(listener: TcpListener, ledger: Arc<Ledger>) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let ledger = Arc::clone(&ledger);
                connections.spawn(async move {
                    if let Err(error) = serve(stream, &ledger).await
                        && !matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
                    {
                        eprintln!("sink: {error}");
                    }
                });
            }
            Err(error) => eprintln!("sink: {error}"),
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut stream: TcpStream, ledger: &Ledger) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut incoming = Incoming::new();
    while let Some(message) = incoming.next(&mut stream).await? {
        let now_ns = clock::now_ns();
        let path = message.path().unwrap_or_default();
        let answer = if let Some(endpoint) = path.strip_prefix(b"/ok/") {
            ledger.note_received(number(endpoint), message::number(message.body), now_ns);
            OK
        } else if let Some(endpoint) = path.strip_prefix(b"/late/") {
            ledger.note_received(number(endpoint), message::number(message.body), now_ns);
            tokio::time::sleep(LATE).await;
            OK
        } else if path == b"/hang" {
            ledger.note_unserved();
            tokio::time::sleep(HANG).await;
            OK
        } else {
            ledger.note_unserved();
            match path {
                b"/take" => OK,
                b"/refuse" => REFUSED,
                _ => FAILED,
            }
        };
        stream.write_all(answer).await?;
    }
    Ok(())
}

/// An endpoint's number, or one that no endpoint has.
fn number(endpoint: &[u8]) -> usize {
    std::str::from_utf8(endpoint).ok().and_then(|text| text.parse().ok()).unwrap_or(usize::MAX)
}
