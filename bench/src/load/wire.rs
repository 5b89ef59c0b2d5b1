//! As much of HTTP/1.1 as generator and sink need: whole messages with a content length, on a kept connection.
//!
//! Invariant: a message that this cannot read, such as one in chunks, is an error and never a guess.

use std::{fmt, io};

use memchr::memmem;
use tokio::{io::AsyncReadExt as _, net::TcpStream};

/// Largest message: head and body.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;

const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// Where the parts of the first message in a buffer lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    head: usize,
    body: usize,
}

/// What is received on one connection.
#[derive(Debug)]
pub(crate) struct Incoming {
    buffer: Vec<u8>,
    filled: usize,
    /// Bytes of the message that was given out last: they make room when the next one is asked for.
    used: usize,
}

/// A message: its head with the empty line, and its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    head: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; MAX_MESSAGE_BYTES], filled: 0, used: 0 }
    }

    /// The next message; `None` if the peer closed the connection before it began.
    pub(crate) async fn next(&mut self, stream: &mut TcpStream) -> io::Result<Option<Message<'_>>> {
        self.buffer.copy_within(self.used..self.filled, 0);
        self.filled -= self.used;
        self.used = 0;
        let extent = loop {
            if let Some(extent) = extent(&self.buffer[..self.filled])?
                && extent.head + extent.body <= self.filled
            {
                break extent;
            }
            if self.filled == self.buffer.len() {
                return Err(invalid("a message is too large"));
            }
            let read = stream.read(&mut self.buffer[self.filled..]).await?;
            match read {
                0 if self.filled == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => self.filled += read,
            }
        };
        self.used = extent.head + extent.body;
        let (head, body) = self.buffer[..self.used].split_at(extent.head);
        Ok(Some(Message { head, body }))
    }
}

impl<'a> Message<'a> {
    /// The status of a response.
    pub(crate) fn status(self) -> Option<u16> {
        let digits = self.head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// The target of a request.
    pub(crate) fn path(self) -> Option<&'a [u8]> {
        self.head.strip_prefix(b"POST ")?.split(|byte| *byte == b' ').next()
    }
}

impl fmt::Display for Message<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", String::from_utf8_lossy(self.head), String::from_utf8_lossy(self.body))
    }
}

/// The first message's extent, once its head is complete.
fn extent(bytes: &[u8]) -> io::Result<Option<Extent>> {
    let Some(end) = memmem::find(bytes, END_OF_HEAD) else { return Ok(None) };
    let mut body = 0;
    for line in bytes[..end].split(|byte| *byte == b'\n') {
        if value(line, b"transfer-encoding:").is_some() {
            return Err(invalid("a message comes in chunks"));
        }
        if let Some(value) = value(line, b"content-length:") {
            let parsed = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
            body = parsed.ok_or_else(|| invalid("a content length is no number"))?;
        }
    }
    Ok(Some(Extent { head: end + END_OF_HEAD.len(), body }))
}

fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then_some(rest)
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;

    #[test]
    fn the_extent_of_a_message_is_known_from_its_head() {
        let check = |bytes: &[u8], expected: Option<(usize, usize)>| {
            let found = extent(bytes).unwrap().map(|extent| (extent.head, extent.body));
            assert_eq!(found, expected, "{}", String::from_utf8_lossy(bytes));
        };
        check(b"", None);
        check(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n", None);
        check(b"HTTP/1.1 204 No Content\r\n\r\n", Some((27, 0)));
        check(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", Some((38, 3)));
        check(b"HTTP/1.1 200 OK\r\ncontent-length:3\r\n\r\nabcHTTP/1.1", Some((37, 3)));
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        for bytes in [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".as_slice(),
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        ] {
            assert!(extent(bytes).is_err());
        }
    }

    #[tokio::test]
    async fn messages_are_read_one_after_the_other_however_they_are_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut writing = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut reading, _) = listener.accept().await.unwrap();
        let mut incoming = Incoming::new();

        writing.write_all(b"POST /ok/0 HTTP/1.1\r\ncontent-length: 2\r\n\r\nabPOST /fail HTT").await.unwrap();
        let first = incoming.next(&mut reading).await.unwrap().unwrap();
        assert_eq!((first.path(), first.body), (Some(b"/ok/0".as_slice()), b"ab".as_slice()));
        writing.write_all(b"P/1.1\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n").await.unwrap();
        let second = incoming.next(&mut reading).await.unwrap().unwrap();
        assert_eq!((second.path(), second.body), (Some(b"/fail".as_slice()), b"".as_slice()));
        let third = incoming.next(&mut reading).await.unwrap().unwrap();
        assert_eq!(third.status(), Some(202));
        drop(writing);
        assert!(incoming.next(&mut reading).await.unwrap().is_none());
    }
}
