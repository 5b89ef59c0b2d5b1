//! TLS in front of a server that speaks none, with any certificate.

use std::{net::Ipv4Addr, sync::Arc};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// A port that ends TLS in front of an address.
pub(crate) async fn in_front(
    config: Arc<rustls::ServerConfig>,
    address: String,
    tasks: &mut JoinSet<()>,
) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (address, config) = (address.clone(), Arc::clone(&config));
            connections.spawn(async move {
                let Ok(mut inner) = TcpStream::connect(&address).await else { return };
                if let Ok(mut outer) = TlsAcceptor::from(config).accept(stream).await {
                    let _ = copy_bidirectional(&mut outer, &mut inner).await;
                }
            });
        }
    });
    port
}
