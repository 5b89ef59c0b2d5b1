//! A way to the broker on which its answers can get lost: what is said reaches it, and not everything comes back.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// What does not come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    Nothing,
    Confirms,
    Everything,
}

pub(crate) struct Deaf {
    address: SocketAddr,
    lost: watch::Sender<Lost>,
    _tasks: JoinSet<()>,
}

impl Deaf {
    pub(crate) async fn before(broker: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free loopback port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let lost = watch::Sender::new(Lost::Nothing);
        let mut tasks = JoinSet::new();
        let seen = lost.subscribe();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(lead(client, broker, seen.clone()));
            }
        });
        Self { address, lost, _tasks: tasks }
    }

    pub(crate) fn url(&self, broker_url: &str, broker: SocketAddr) -> String {
        broker_url.replacen(&broker.to_string(), &self.address.to_string(), 1)
    }

    /// What is lost from now on.
    pub(crate) fn lose(&self, lost: Lost) {
        self.lost.send_replace(lost);
    }
}

async fn lead(client: TcpStream, broker: SocketAddr, lost: watch::Receiver<Lost>) {
    let Ok(broker) = TcpStream::connect(broker).await else { return };
    let ((mut from_client, mut to_client), (mut from_broker, mut to_broker)) =
        (client.into_split(), broker.into_split());
    let there = async { copy(&mut from_client, &mut to_broker).await.map(|_| ()) };
    let back = async {
        let mut bytes = Vec::new();
        while from_broker.read_buf(&mut bytes).await? > 0 {
            while let Some(frame) = first_frame(&mut bytes) {
                let is_lost = match *lost.borrow() {
                    Lost::Nothing => false,
                    Lost::Confirms => is_confirm(&frame),
                    Lost::Everything => true,
                };
                if !is_lost {
                    to_client.write_all(&frame).await?;
                }
            }
        }
        std::io::Result::Ok(())
    };
    tokio::select! {
        _ = there => {}
        _ = back => {}
    }
}

/// A frame is its type, its channel, the length of what it says, that, and an end (AMQP 0-9-1, section 4.2.3).
fn first_frame(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(bytes.get(3..7)?.try_into().expect("four bytes"));
    let end = usize::try_from(length).expect("32 bits") + 8;
    (bytes.len() >= end).then(|| bytes.drain(..end).collect())
}

/// `basic.ack`: the method 80 of the class 60.
fn is_confirm(frame: &[u8]) -> bool {
    frame[0] == 1 && frame[7..].starts_with(&[0, 60, 0, 80])
}
