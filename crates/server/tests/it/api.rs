//! A plain client of the HTTP surface.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// An answer: status and body, which is `null` where it is no JSON.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    /// A text in the body.
    #[track_caller]
    pub(crate) fn text(&self, name: &str) -> String {
        self.body[name].as_str().unwrap_or_else(|| panic!("no `{name}` in {self:?}")).to_owned()
    }
}

/// One request on a connection of its own.
pub(crate) async fn call(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: &str,
    body: impl AsRef<[u8]>,
) -> Answer {
    let head = format!("{method} {path} HTTP/1.1\r\nauthorization: Bearer {token}\r\n");
    exchange(address, &head, body.as_ref()).await
}

/// The same with a head of the caller's, which lacks only what every request has.
pub(crate) async fn exchange(address: SocketAddr, head: &str, body: &[u8]) -> Answer {
    let length = body.len();
    let rest = format!(
        "host: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let answer = send_raw(address, &[head.as_bytes(), rest.as_bytes(), body].concat()).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap();
    Answer { status, body: serde_json::from_str(body).unwrap_or_default() }
}

/// Sends bytes and reads whatever comes back until the connection ends.
pub(crate) async fn send_raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
