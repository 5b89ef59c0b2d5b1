//! What the listening socket refuses before any operation sees it.

use std::time::Duration;

use postrider_testkit::postgres::Database;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::{api::send_raw, server::Server};

#[tokio::test]
async fn heads_are_bounded_and_framing_is_never_ambiguous() {
    let database = Database::fresh().await;
    let server = Server::start(&database, "api").await;
    let long_header = format!("GET /health HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "a".repeat(64 * 1024));
    let many_headers = format!("GET /health HTTP/1.1\r\nhost: x\r\n{}\r\n", "x-many: 1\r\n".repeat(200));
    for (name, request, expected) in [
        ("a long header", long_header.as_str(), "HTTP/1.1 431 "),
        ("many headers", many_headers.as_str(), "HTTP/1.1 431 "),
        (
            "two lengths",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            "HTTP/1.1 400 ",
        ),
        ("a signed length", "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +1\r\n\r\na", "HTTP/1.1 400 "),
        (
            "an unknown coding",
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n",
            "HTTP/1.1 400 ",
        ),
        (
            "two codings",
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 400 ",
        ),
        (
            "a made-up coding",
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: x, chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 400 ",
        ),
        (
            "a coding twice",
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n\
             0\r\n\r\n",
            "HTTP/1.1 400 ",
        ),
        ("no host", "GET /health/live HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "),
        ("two hosts", "GET /health/live HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", "HTTP/1.1 400 "),
        ("no host in HTTP/1.0", "GET /health/live HTTP/1.0\r\n\r\n", "HTTP/1.0 200 "),
        (
            "plain chunks",
            "POST /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: Chunked\r\n\r\n\
             0\r\n\r\n",
            "HTTP/1.1 404 ",
        ),
        ("a folded header", "GET / HTTP/1.1\r\nhost: x\r\nx: 1\r\n 2\r\n\r\n", "HTTP/1.1 400 "),
        (
            "a space before the colon",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length : 1\r\n\r\na",
            "HTTP/1.1 400 ",
        ),
    ] {
        let answer = send_raw(server.address, request.as_bytes()).await;
        assert!(answer.starts_with(expected), "{name}: {answer:?}");
        assert_eq!(answer.matches("HTTP/1.").count(), 1, "{name}: {answer:?}");
    }
    assert_eq!(server.get("/health/live").await.status, 200);
}

/// What a publisher announces and does not send takes nobody's room: not for its 30 seconds, and not at all.
#[tokio::test]
async fn idle_publishers_keep_nobody_from_publishing() {
    let database = Database::fresh().await;
    let server = Server::start(&database, "api").await;
    let publisher = server.publisher().await;
    let head = format!(
        "POST /api/tenants/acme/applications/orders/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 8388608\r\nexpect: 100-continue\r\n\r\n",
        publisher.tokens()[1]
    );
    let mut idle = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        // This answer says that the server has begun to read the body.
        let mut answer = [0; 25];
        timeout(Duration::from_secs(10), stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
        idle.push(stream);
    }
    let answer = publisher.try_publish(b"1").await;
    assert_eq!(answer.status, 202, "{answer:?}");
    drop(idle);
}
