//! A way to the broker on which its answers can get lost: what is said reaches it, and nothing comes back.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

pub(crate) struct Deaf {
    address: SocketAddr,
    swallows: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Deaf {
    pub(crate) async fn before(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free loopback port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let swallows = watch::Sender::new(false);
        let mut tasks = JoinSet::new();
        let seen = swallows.subscribe();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(lead(client, broker, seen.clone()));
            }
        });
        Self { address, swallows, _tasks: tasks }
    }

    pub(crate) fn url(&self, broker_url: &str, broker: SocketAddr) -> String {
        broker_url.replacen(&broker.to_string(), &self.address.to_string(), 1)
    }

    /// From now on answers are lost, or no longer.
    pub(crate) fn swallow(&self, swallows: bool) {
        self.swallows.send_replace(swallows);
    }
}

async fn lead(client: TcpStream, broker: SocketAddr, swallows: watch::Receiver<bool>) {
    let Ok(broker) = TcpStream::connect(broker).await else { return };
    let ((mut from_client, mut to_client), (mut from_broker, mut to_broker)) =
        (client.into_split(), broker.into_split());
    let there = async { copy(&mut from_client, &mut to_broker).await.map(|_| ()) };
    let back = async {
        let mut bytes = [0; 4_096];
        loop {
            let count = from_broker.read(&mut bytes).await?;
            if count == 0 {
                return std::io::Result::Ok(());
            }
            if !*swallows.borrow() {
                to_client.write_all(&bytes[..count]).await?;
            }
        }
    };
    tokio::select! {
        _ = there => {}
        _ = back => {}
    }
}
