//! A TCP connection that counts what it receives and can be asked whether anything is waiting in it, and what HTTP runs
//! over: that connection, or TLS over it.
//!
//! Invariant: one exchange receives no more than its limit, whatever layer above would go on reading. Bytes of TLS count
//! towards the limit; only what comes out of it, to be read as HTTP, is part of an answer.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use rustix::net::{RecvFlags, recv};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

/// A shared handle, so that the layers above can own one and the pool still ask another.
#[derive(Debug, Clone)]
pub(super) struct Socket(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    stream: TcpStream,
    received: AtomicUsize,
    limit: AtomicUsize,
    /// HTTP has been given a byte.
    is_answered: AtomicBool,
}

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self(Arc::new(Counted {
            stream,
            received: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            is_answered: AtomicBool::new(false),
        }))
    }

    /// Begins an exchange that may receive this many bytes.
    pub(super) fn begin(&self, limit: usize) {
        self.0.received.store(0, Relaxed);
        self.0.limit.store(limit, Relaxed);
        self.0.is_answered.store(false, Relaxed);
    }

    /// Whether HTTP was given a byte in this exchange. An alert or a session ticket of TLS is none.
    pub(super) fn is_answered(&self) -> bool {
        self.0.is_answered.load(Relaxed)
    }

    pub(super) fn is_over_limit(&self) -> bool {
        self.0.received.load(Relaxed) > self.0.limit.load(Relaxed)
    }

    /// Whether the connection is open and nothing has arrived.
    ///
    /// The system is asked, because the runtime knows only what it has already been told: bytes that follow an answer
    /// must not be taken for the next one.
    pub(super) fn is_quiet(&self) -> bool {
        let peeked = recv(&self.0.stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        matches!(peeked, Err(rustix::io::Errno::AGAIN))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_over_limit() {
            return Poll::Ready(Err(io::Error::other("more was received than an exchange may")));
        }
        let (stream, room) = (&self.0.stream, buffer.remaining());
        loop {
            ready!(stream.poll_read_ready(context))?;
            let mut count = 0;
            // A read that does not fill the buffer has emptied the socket. Saying so to the runtime spares the read that
            // would only find that out; what arrives in between makes it ready again.
            let read = stream.try_io(Interest::READABLE, || {
                count = stream.try_read_buf(buffer)?;
                if 0 < count && count < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match read {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
                Err(_) if count == 0 => {}
                Ok(()) | Err(_) => {
                    self.0.received.fetch_add(count, Relaxed);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl Socket {
    fn poll_write_with(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.stream.poll_write_ready(context))?;
            match write(&self.0.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(context, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// TCP has nothing to flush.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Closing happens when the last handle is dropped, and no receiver is told half of it before.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What HTTP runs over.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Stream {
    fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let before = buffer.filled().len();
        let polled = match stream {
            Self::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        if buffer.filled().len() > before {
            stream.socket().0.is_answered.store(true, Relaxed);
        }
        polled
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
