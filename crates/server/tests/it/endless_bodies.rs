//! Bodies without an end, from whoever: the answer comes early, and what is read after it is bounded, in bytes and in time.

use std::time::Duration;

use postrider_testkit::postgres::Database;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::server::{BOOTSTRAP_TOKEN, EVENTS, KEY, Server};

/// What a client would send if nobody stopped it.
const ANNOUNCED_BYTES: u64 = 10 * 1024 * 1024 * 1024;
/// Most that is taken from it: twice the largest body, and what lies in the buffers of two sockets.
const MOST_BYTES: u64 = 32 * 1024 * 1024;
/// A connection ends within two seconds of its answer; and this machine may be busy.
const PATIENCE: Duration = Duration::from_secs(15);

/// Sends chunk after chunk until the connection is closed; the answer, and how many bytes were taken.
async fn send_without_end(server: &Server, head: &str) -> (String, u64) {
    let chunk = [b"10000\r\n".as_slice(), &vec![b' '; 0x1_0000], b"\r\n"].concat();
    let (mut reading, mut writing) = TcpStream::connect(server.address).await.unwrap().into_split();
    let receiving = async {
        let mut answer = Vec::new();
        // Whoever is cut off may find the connection reset, once its answer has been read.
        let _ = reading.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    };
    let sending = async {
        writing.write_all(head.as_bytes()).await.unwrap();
        let mut sent = 0;
        while sent < ANNOUNCED_BYTES && writing.write_all(&chunk).await.is_ok() {
            sent += chunk.len() as u64;
        }
        sent
    };
    let exchanging = async { tokio::join!(receiving, sending) };
    timeout(PATIENCE, exchanging).await.expect("it is answered and cut off")
}

#[tokio::test]
async fn an_endless_body_is_answered_and_cut_off_whoever_sends_it() {
    let database = Database::fresh().await;
    let server = Server::start_with(&database, "api", &[("POSTRIDER_JWT_SECRET", KEY)]).await;
    let publisher = server.publisher().await;
    let publish_token = publisher.tokens()[1];
    for (name, path, token, expected) in [
        ("a stranger", EVENTS, "wrong", "HTTP/1.1 401 "),
        ("no such path", "/nothing", "wrong", "HTTP/1.1 404 "),
        // It takes a password in its body, so nobody is known before it is read.
        ("a login", "/api/auth/login", "wrong", "HTTP/1.1 413 "),
        ("a publisher", EVENTS, publish_token, "HTTP/1.1 413 "),
        ("an operator", "/api/admin/tenants", BOOTSTRAP_TOKEN, "HTTP/1.1 413 "),
    ] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        let (answer, sent) = send_without_end(&server, &head).await;
        assert!(answer.starts_with(expected), "{name}: {answer:?}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{name}: {answer:?}");
        assert!(sent <= MOST_BYTES, "{name} got rid of {sent} bytes");
    }
}
