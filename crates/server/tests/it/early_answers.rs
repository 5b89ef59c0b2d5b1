//! Answers that are ready before the request has been sent to its end: they arrive, and say what becomes of the
//! connection.

use std::time::Duration;

use postrider_testkit::postgres::Database;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{
    api::call,
    server::{BOOTSTRAP_TOKEN, EVENTS, Publisher, Server},
};

/// Longest wait for an answer that is due at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is told of a connection that ends.
const CLOSE: &str = "\r\nconnection: close\r\n";
const FOLLOWING: &[u8] = b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

fn head(path: &str, token: &str, framing: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
         {framing}\r\n\r\n"
    )
}

/// A publisher whose tenant has published as much as it may.
async fn exhausted(server: &Server) -> Publisher {
    let publisher = server.publisher().await;
    let limits = json!({ "rate": 0.01, "burst": 1 }).to_string();
    let answer = call(server.address, "PATCH", "/api/admin/tenants/acme", BOOTSTRAP_TOKEN, &limits).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    publisher.publish("1").await;
    publisher
}

/// Reads an answer whose connection may go on.
async fn read_answer(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let length = |answer: &[u8]| {
        let text = std::str::from_utf8(answer).unwrap();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let (_, length) = head.split_once("content-length: ")?;
        Some(length.split("\r\n").next()?.parse::<usize>().unwrap() - body.len())
    };
    while length(&answer) != Some(0) {
        let read = timeout(PATIENCE, stream.read_buf(&mut answer)).await.unwrap().unwrap();
        assert_ne!(read, 0, "the connection ended within an answer: {:?}", String::from_utf8_lossy(&answer));
    }
    String::from_utf8(answer).unwrap()
}

/// Sends a body in two writes, the second one when the answer to the first is there, and reads to the end.
async fn send_in_two(server: &Server, head: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let (first, second) = body.split_at(body.len() / 2);
    stream.write_all(&[head.as_bytes(), first].concat()).await.unwrap();
    timeout(PATIENCE, stream.readable()).await.unwrap().unwrap();
    // In pieces, so that a connection that was reset is met by one of them.
    for piece in second.chunks(64 * 1024) {
        stream.write_all(piece).await.unwrap();
    }
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn whoever_is_refused_while_sending_reads_why() {
    let database = Database::fresh().await;
    let server = Server::start(&database, "api").await;
    let publisher = exhausted(&server).await;
    let publish_token = publisher.tokens()[1];
    let batches = EVENTS.rsplit_once('/').unwrap().0;
    for (name, path, token, bytes, expected) in [
        ("a wrong token", EVENTS, "wrong", 1_000_000, ["HTTP/1.1 401 ", "\r\nwww-authenticate: "]),
        ("no such path", "/nothing", "wrong", 1_000_000, ["HTTP/1.1 404 ", CLOSE]),
        ("too fast", EVENTS, publish_token, 1_000_000, ["HTTP/1.1 429 ", "\r\nretry-after: "]),
        ("a batch, too fast", batches, publish_token, 8_000_000, ["HTTP/1.1 429 ", "\r\nretry-after: "]),
        ("too large", "/api/admin/tenants", BOOTSTRAP_TOKEN, 8_000_000, ["HTTP/1.1 413 ", CLOSE]),
    ] {
        let head = head(path, token, &format!("content-length: {bytes}"));
        let answer = send_in_two(&server, &head, &vec![b' '; bytes]).await;
        assert!(answer.starts_with(expected[0]), "{name}: {answer:?}");
        for part in [expected[1], CLOSE] {
            assert!(answer.contains(part), "{name}: {answer:?}");
        }
    }

    let long_header = format!("GET /health HTTP/1.1\r\nhost: x\r\nx-long: {}", "a".repeat(1_000_000));
    let answer = send_in_two(&server, &long_header, &vec![b'a'; 1_000_000]).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer:?}");
}

/// Libraries send head and body in two packets, and keep their connections.
#[tokio::test]
async fn a_small_body_that_comes_after_its_head_costs_no_connection_or_says_so() {
    let database = Database::fresh().await;
    let server = Server::start(&database, "api").await;
    for (framing, body) in
        [("content-length: 5", "[1,2]"), ("transfer-encoding: chunked", "5\r\n[1,2]\r\n0\r\n\r\n")]
    {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(head(EVENTS, "wrong", framing).as_bytes()).await.unwrap();
        // That it comes late is the case itself; nothing is waited for.
        sleep(Duration::from_millis(50)).await;
        stream.write_all(body.as_bytes()).await.unwrap();
        let answer = read_answer(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{framing}: {answer:?}");
        if answer.contains(CLOSE) {
            // On a machine that is slow enough.
            assert_eq!(timeout(PATIENCE, stream.read(&mut [0])).await.unwrap().unwrap(), 0, "{framing}");
            continue;
        }
        stream.write_all(FOLLOWING).await.unwrap();
        let answer = read_answer(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{framing}: {answer:?}");
    }
}

/// A body that came along with its head keeps the connection, whether or not an operation read it.
#[tokio::test]
async fn a_body_that_is_there_keeps_its_connection() {
    let database = Database::fresh().await;
    let server = Server::start(&database, "api").await;
    let publisher = exhausted(&server).await;
    let publish_token = publisher.tokens()[1];
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for (path, token, expected) in [
        (EVENTS, "wrong", "HTTP/1.1 401 "),
        ("/nothing", "wrong", "HTTP/1.1 404 "),
        (EVENTS, publish_token, "HTTP/1.1 429 "),
        ("/api/admin/tenants", BOOTSTRAP_TOKEN, "HTTP/1.1 422 "),
    ] {
        let request = head(path, token, "content-length: 5") + "[1,2]";
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = read_answer(&mut stream).await;
        assert!(answer.starts_with(expected) && !answer.contains(CLOSE), "{path}: {answer:?}");
    }
    stream.write_all(FOLLOWING).await.unwrap();
    assert!(read_answer(&mut stream).await.starts_with("HTTP/1.1 200 "));
}

/// Nobody waits for what was announced and does not come, nor asks for a body that is refused already.
#[tokio::test]
async fn a_body_that_does_not_come_ends_its_connection() {
    let database = Database::fresh().await;
    let server = Server::start(&database, "api").await;
    for framing in
        ["content-length: 5", "transfer-encoding: chunked", "content-length: 5\r\nexpect: 100-continue"]
    {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(head(EVENTS, "wrong", framing).as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains(CLOSE), "{framing}: {answer:?}");
    }
}
