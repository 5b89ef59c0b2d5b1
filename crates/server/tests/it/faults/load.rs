//! Publishers that go on whatever happens, and keep the book of what they were promised.

use std::{io, net::SocketAddr, time::Duration};

use postrider_core::name::IdempotencyKey;
use postrider_testkit::ledger::{Accepted, Ledger};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    api::Answer,
    server::{EVENTS, Publisher, accepted},
};

/// How long a publisher waits before it tries again: it knows no better than one that was told `Retry-After`.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest wait for an answer: the process gives up by itself after 30 seconds.
const PATIENCE: Duration = Duration::from_secs(40);

/// Publishers at work.
pub(super) struct Load {
    publishers: JoinSet<Vec<Accepted>>,
    addresses: watch::Sender<Vec<SocketAddr>>,
    goes_on: watch::Sender<bool>,
    counts: watch::Sender<Counts>,
}

/// What all publishers have heard.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) accepted: usize,
    /// Refused for the time being.
    pub(super) refused: usize,
    /// Neither taken where it was tried first nor at the next address.
    pub(super) refused_twice: usize,
    /// No answer.
    pub(super) unheard: usize,
}

impl Load {
    /// Starts so many publishers. Each sends one event after the other, each under its own key, and repeats one until
    /// it was accepted; after a refusal it tries the next address.
    pub(super) fn start(publisher: &Publisher, addresses: &[SocketAddr], publishers: usize) -> Self {
        let addresses = watch::Sender::new(addresses.to_vec());
        let (goes_on, counts) = (watch::Sender::new(true), watch::Sender::new(Counts::default()));
        let mut running = JoinSet::new();
        for number in 0..publishers {
            let one = One {
                number,
                token: publisher.tokens()[1].to_owned(),
                addresses: addresses.subscribe(),
                goes_on: goes_on.subscribe(),
                counts: counts.clone(),
            };
            running.spawn(one.run());
        }
        Self { publishers: running, addresses, goes_on, counts }
    }

    /// Waits until what was heard is as expected.
    pub(super) async fn until(&self, what: &str, is_so: impl Fn(Counts) -> bool) {
        let mut counts = self.counts.subscribe();
        let heard = timeout(PATIENCE, counts.wait_for(|counts| is_so(*counts))).await;
        assert!(heard.is_ok(), "never {what}: {:?}", self.counts());
    }

    /// From now on publishers try these.
    pub(super) fn publish_to(&self, addresses: Vec<SocketAddr>) {
        self.addresses.send_replace(addresses);
    }

    pub(super) fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    /// Lets each publisher finish what it is about; the book of what they were promised.
    pub(super) async fn stop(self) -> Ledger {
        self.goes_on.send_replace(false);
        let accepted = self.publishers.join_all().await.concat();
        Ledger { accepted, ..Ledger::default() }
    }
}

struct One {
    number: usize,
    token: String,
    addresses: watch::Receiver<Vec<SocketAddr>>,
    goes_on: watch::Receiver<bool>,
    counts: watch::Sender<Counts>,
}

impl One {
    async fn run(self) -> Vec<Accepted> {
        let mut book = Vec::new();
        let mut tries = self.number;
        for event in 0.. {
            let (key, body) = (format!("{}-{event}", self.number), format!("[{},{event}]", self.number));
            for repeat in 0_usize.. {
                if !*self.goes_on.borrow() {
                    return book;
                }
                let address = {
                    let addresses = self.addresses.borrow();
                    addresses[tries % addresses.len()]
                };
                if repeat == 2 {
                    self.counts.send_modify(|counts| counts.refused_twice += 1);
                }
                match publish(address, &self.token, &key, body.as_bytes()).await {
                    Ok(answer) if matches!(answer.status, 200 | 202) => {
                        book.push(promised(&answer, &key, body.as_bytes()));
                        self.counts.send_modify(|counts| counts.accepted += 1);
                        break;
                    }
                    Ok(answer) if answer.status == 503 => {
                        self.counts.send_modify(|counts| counts.refused += 1);
                    }
                    Ok(answer) => panic!("neither accepted nor to be repeated: {answer:?}"),
                    Err(_) => self.counts.send_modify(|counts| counts.unheard += 1),
                }
                tries += 1;
                sleep(PAUSE).await;
            }
        }
        book
    }
}

/// A 2xx answer to an event under a key, as the publisher's book has it.
pub(super) fn promised(answer: &Answer, key: &str, body: &[u8]) -> Accepted {
    let key: IdempotencyKey = key.parse().unwrap();
    Accepted { key: Some(("orders".to_owned(), key)), ..accepted(answer, body) }
}

/// Publishes under a key; an error where no whole answer came.
pub(super) async fn publish(address: SocketAddr, token: &str, key: &str, body: &[u8]) -> io::Result<Answer> {
    let length = body.len();
    let head = format!(
        "POST {EVENTS} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nidempotency-key: {key}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    let exchanging = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(&[head.as_bytes(), body].concat()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Answer { status, body: serde_json::from_str(body)? })
    };
    timeout(PATIENCE, exchanging).await?
}
