//! Connects to an address that the guard let through, and to no other.

use std::{
    fmt::Debug,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use postrider_core::{
    destination::{Origin, Scheme},
    retry::{Failure, FailureKind},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use super::{
    connection::Connection,
    socket::{Socket, Stream},
    tls,
};

/// Most addresses of one name that are tried, one after the other.
const MAX_ADDRESSES_TRIED: u32 = 3;
/// Most bytes received in a TLS handshake.
const MAX_HANDSHAKE_BYTES: usize = 256 * 1024;

/// Opens TCP connections.
pub trait Dial: Debug + Send + Sync + 'static {
    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>>;
}

/// The system's TCP, straight to the address: no proxy is ever asked.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemDial;

impl Dial for SystemDial {
    fn dial(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(address))
    }
}

pub(super) struct Connector {
    pub(super) dial: Arc<dyn Dial>,
    pub(super) tls: TlsConnector,
}

impl Connector {
    /// Tries the first few addresses, each for an equal share of `limit`, until one accepts a connection. What goes
    /// wrong after that, such as a certificate, is the receiver's answer and not tried elsewhere.
    pub(super) async fn connect(
        &self,
        origin: &Origin,
        addresses: &[IpAddr],
        limit: Duration,
    ) -> Result<Box<Connection>, Failure> {
        let tries = u32::try_from(addresses.len()).unwrap_or(u32::MAX).clamp(1, MAX_ADDRESSES_TRIED);
        let share = limit / tries;
        let mut last = failure("the name has no address".to_owned());
        for address in addresses.iter().take(tries as usize) {
            let dialled = timeout(share, self.dial.dial(SocketAddr::new(*address, origin.port))).await;
            match dialled {
                Ok(Ok(stream)) => return self.open(origin, stream, *address, share).await,
                Ok(Err(error)) => last = failure(refusal_words(&error, origin.port)),
                Err(_) => last = failure(format!("no connection within {} ms", share.as_millis())),
            }
        }
        Err(last)
    }

    async fn open(
        &self,
        origin: &Origin,
        stream: TcpStream,
        peer: IpAddr,
        limit: Duration,
    ) -> Result<Box<Connection>, Failure> {
        // A request is written at once; waiting to fill a segment would only delay it.
        let _ = stream.set_nodelay(true);
        let socket = Socket::new(stream);
        let stream = match origin.scheme {
            Scheme::Http => Stream::Plain(socket.clone()),
            Scheme::Https => {
                socket.begin(MAX_HANDSHAKE_BYTES);
                let handshake = self.tls.connect(tls::server_name(&origin.host)?, socket.clone());
                let shaken = timeout(limit, handshake).await;
                let late =
                    |_| tls::failure(format!("the TLS handshake took longer than {} ms", limit.as_millis()));
                let stream =
                    shaken.map_err(late)?.map_err(|error| tls::handshake_failure(&error, &origin.host))?;
                Stream::Tls(Box::new(stream))
            }
        };
        Connection::open(stream, socket, peer).await
    }
}

fn refusal_words(error: &io::Error, port: u16) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("nothing accepts connections on port {port}"),
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => {
            "there is no route to the receiver".to_owned()
        }
        // Not an enum of ours: the system's own words are better than none.
        kind => format!("no connection came about: {kind}"),
    }
}

fn failure(detail: String) -> Failure {
    Failure { kind: FailureKind::Connect, detail }
}
