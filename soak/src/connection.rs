//! A light HTTP/1.1 client: one connection, one exchange at a time, and whatever goes wrong is told as it is.

use std::{io, net::SocketAddr, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Longest answer read, in bytes; the longest that is expected has a few hundred.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

#[derive(Debug)]
pub(crate) struct Connection(TcpStream);

/// An answer; the body is `null` where it is no JSON.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
    /// The server ends the connection with this answer.
    pub(crate) is_last: bool,
}

/// A request without its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) token: &'a str,
    pub(crate) key: Option<&'a str>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Sends a request and reads its answer. After an error the connection is of no more use.
    pub(crate) async fn exchange(
        &mut self,
        head: Head<'_>,
        body: &[u8],
        limit: Duration,
    ) -> io::Result<Answer> {
        let Head { method, path, token, key } = head;
        let key = key.map_or_else(String::new, |key| format!("idempotency-key: {key}\r\n"));
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: soak\r\nauthorization: Bearer {token}\r\n{key}\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        let exchange = async {
            self.0.write_all(&[head.as_bytes(), body].concat()).await?;
            self.read_answer().await
        };
        timeout(limit, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn read_answer(&mut self) -> io::Result<Answer> {
        let mut bytes = Vec::with_capacity(1024);
        let head_length = loop {
            if let Some(at) = bytes.windows(END_OF_HEAD.len()).position(|window| window == END_OF_HEAD) {
                break at + END_OF_HEAD.len();
            }
            self.read_more(&mut bytes).await?;
        };
        let head = String::from_utf8_lossy(&bytes[..head_length]).to_ascii_lowercase();
        let header = |name: &str| {
            let mut headers = head.split("\r\n").filter_map(|line| line.split_once(": "));
            headers.find(|(found, _)| *found == name).map(|(_, value)| value)
        };
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let length: Option<usize> = header("content-length").map_or(Some(0), |length| length.parse().ok());
        let (Some(status), Some(length)) = (status, length) else { return Err(unreadable()) };
        let is_last = header("connection") == Some("close");
        while bytes.len() - head_length < length {
            self.read_more(&mut bytes).await?;
        }
        let body = serde_json::from_slice(&bytes[head_length..]).unwrap_or_default();
        Ok(Answer { status, body, is_last })
    }

    async fn read_more(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        if bytes.len() > MAX_ANSWER_BYTES {
            return Err(unreadable());
        }
        match self.0.read_buf(bytes).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

fn unreadable() -> io::Error {
    io::ErrorKind::InvalidData.into()
}
