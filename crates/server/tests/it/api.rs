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
pub(crate) async fn call(address: SocketAddr, method: &str, path: &str, token: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap();
    Answer { status, body: serde_json::from_str(body).unwrap_or_default() }
}
