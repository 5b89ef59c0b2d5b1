//! Requests that two programs on the way could take for different ones: each is answered once and refused, its connection
//! ends, nothing of it is stored, and what stands behind it is never read as a request of its own.

use std::time::Duration;

use postrider_testkit::postgres::Database;
use tokio::time::timeout;

use super::scene::count;
use crate::{
    api::send_raw,
    server::{EVENTS, Server},
};

/// A connection that is not ended by then is one that goes on.
const PATIENCE: Duration = Duration::from_secs(10);

/// Header lines behind those of a good request, and what follows the head.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "a length, then a coding",
        "content-length: 3\r\ntransfer-encoding: chunked\r\n",
        "3\r\n[1]\r\n0\r\n\r\n",
    ),
    (
        "a coding, then a length",
        "transfer-encoding: chunked\r\ncontent-length: 3\r\n",
        "3\r\n[1]\r\n0\r\n\r\n",
    ),
    ("a length that hides the rest", "content-length: 5\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"),
    ("two lengths", "content-length: 3\r\ncontent-length: 4\r\n", "[1] "),
    ("one length twice", "content-length: 3\r\ncontent-length: 3\r\n", "[1]"),
    ("a list of lengths", "content-length: 3, 3\r\n", "[1]"),
    ("a signed length", "content-length: +3\r\n", "[1]"),
    ("a negative length", "content-length: -3\r\n", "[1]"),
    ("a hexadecimal length", "content-length: 0x3\r\n", "[1]"),
    ("a length in two parts", "content-length: 3 0\r\n", "[1]"),
    ("a length with an underscore", "content-length: 1_3\r\n", "[1]"),
    ("an empty length", "content-length:\r\n", "[1]"),
    ("a length behind a vertical tab", "content-length: \x0b3\r\n", "[1]"),
    ("a length beyond any number", "content-length: 99999999999999999999999\r\n", "[1]"),
    ("a space before the colon", "content-length : 3\r\n", "[1]"),
    ("another coding", "transfer-encoding: gzip\r\n", "[1]"),
    ("a list of codings", "transfer-encoding: gzip, chunked\r\n", "3\r\n[1]\r\n0\r\n\r\n"),
    ("a coding that comes last", "transfer-encoding: chunked, identity\r\n", "3\r\n[1]\r\n0\r\n\r\n"),
    (
        "a coding twice",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "3\r\n[1]\r\n0\r\n\r\n",
    ),
    ("a second coding", "transfer-encoding: chunked\r\ntransfer-encoding: x\r\n", "3\r\n[1]\r\n0\r\n\r\n"),
    ("a coding that is nearly one", "transfer-encoding: xchunked\r\n", "3\r\n[1]\r\n0\r\n\r\n"),
    ("a coding with a parameter", "transfer-encoding: chunked;q=1\r\n", "3\r\n[1]\r\n0\r\n\r\n"),
    ("a coding in quotes", "transfer-encoding: \"chunked\"\r\n", "3\r\n[1]\r\n0\r\n\r\n"),
    ("a coding behind a vertical tab", "transfer-encoding: \x0bchunked\r\n", "3\r\n[1]\r\n0\r\n\r\n"),
    (
        "a coding far behind its colon",
        "transfer-encoding:                                                   chunked\r\n",
        "3\r\n[1]\r\n0\r\n\r\n",
    ),
    (
        "a coding and much space",
        "transfer-encoding: chunked                                                  \r\n",
        "3\r\n[1]\r\n0\r\n\r\n",
    ),
    ("an empty coding", "transfer-encoding:\r\n", "3\r\n[1]\r\n0\r\n\r\n"),
    ("a space before a coding's colon", "transfer-encoding : chunked\r\n", "3\r\n[1]\r\n0\r\n\r\n"),
    ("a folded coding", "transfer-encoding:\r\n chunked\r\n", "3\r\n[1]\r\n0\r\n\r\n"),
    ("a folded length", "x: 1\r\n content-length: 3\r\n", "[1]"),
    ("a length behind a bare line feed", "x: 1\ncontent-length: 3\r\n", "[1]"),
    (
        "a coding behind a bare line feed",
        "content-length: 0\r\nx: 1\ntransfer-encoding: chunked\r\n",
        "0\r\n\r\n",
    ),
    ("a length before a bare line feed", "content-length: 3\n", "[1]"),
    ("a head that ends in a bare line feed", "content-length: 3\r\n\n", "[1]"),
    (
        "a coding behind a bare carriage return",
        "x: 1\rtransfer-encoding: chunked\r\n",
        "3\r\n[1]\r\n0\r\n\r\n",
    ),
    ("NUL in a value", "x: 1\0\r\ncontent-length: 3\r\n", "[1]"),
    ("NUL in a name", "x\0: 1\r\ncontent-length: 3\r\n", "[1]"),
    ("a name with a space", "x y: 1\r\ncontent-length: 3\r\n", "[1]"),
    ("a line without a colon", "x\r\ncontent-length: 3\r\n", "[1]"),
    ("an empty name", ": 1\r\ncontent-length: 3\r\n", "[1]"),
    ("a second host", "host: y\r\ncontent-length: 3\r\n", "[1]"),
    ("the same host twice", "host: x\r\ncontent-length: 3\r\n", "[1]"),
    ("a chunk of a signed size", "transfer-encoding: chunked\r\n", "+3\r\n[1]\r\n0\r\n\r\n"),
    ("a chunk of a size with a prefix", "transfer-encoding: chunked\r\n", "0x3\r\n[1]\r\n0\r\n\r\n"),
    ("a chunk beyond any size", "transfer-encoding: chunked\r\n", "FFFFFFFFFFFFFFFFF\r\n[1]\r\n0\r\n\r\n"),
    ("a chunk without a size", "transfer-encoding: chunked\r\n", ";x\r\n[1]\r\n0\r\n\r\n"),
    ("a chunk's size before a bare line feed", "transfer-encoding: chunked\r\n", "3\n[1]\r\n0\r\n\r\n"),
    ("a chunk's extension with a bare line feed", "transfer-encoding: chunked\r\n", "3;x\n[1]\r\n0\r\n\r\n"),
    (
        "a bare line feed, and more of the extension",
        "transfer-encoding: chunked\r\n",
        "3;a\nXX\r\n[1]\r\n0\r\n\r\n",
    ),
    (
        "a bare line feed in the last extension",
        "transfer-encoding: chunked\r\n",
        "3\r\n[1]\r\n0;\nabc\r\n\r\n",
    ),
    (
        "a request in what is a chunk for one and an extension for another",
        "transfer-encoding: chunked\r\n",
        "3;a\nxx\r\n[1]\r\n38\r\n0\r\n\r\nGET /health/version HTTP/1.1\r\nHost: x\r\n\r\n\r\n0\r\n\r\n",
    ),
    ("a chunk that ends in a bare line feed", "transfer-encoding: chunked\r\n", "3\r\n[1]\n0\r\n\r\n"),
    ("a chunk that is longer than its size", "transfer-encoding: chunked\r\n", "3\r\n[1]2\r\n0\r\n\r\n"),
    (
        "a trailer that ends in a bare line feed",
        "transfer-encoding: chunked\r\n",
        "3\r\n[1]\r\n0\r\nx: 1\n\r\n",
    ),
];

/// Whole heads.
const REFUSED_HEADS: &[(&str, &str)] = &[
    ("a request line that ends in a bare line feed", "GET /health/live HTTP/1.1\nhost: x\r\n\r\n"),
    ("no host", "GET /health/live HTTP/1.1\r\n\r\n"),
    ("a folded first line", "GET /health/live HTTP/1.1\r\n host: x\r\n\r\n"),
    ("no version", "GET /health/live\r\nhost: x\r\n\r\n"),
    ("an unknown version", "GET /health/live HTTP/1.2\r\nhost: x\r\n\r\n"),
    ("two spaces", "GET  /health/live HTTP/1.1\r\nhost: x\r\n\r\n"),
    (
        "a coding in HTTP/1.0",
        "POST /health/live HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
];

/// A whole request that stores an event if it is read as one.
fn publish(token: &str, framing: &str, body: &str) -> String {
    format!(
        "POST {EVENTS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n\
         {framing}\r\n{body}"
    )
}

/// Sends a request with a good one behind it; all that comes back until the connection ends.
async fn answers(server: &Server, name: &str, request: &str, behind: &str) -> String {
    let sent = format!("{request}{behind}");
    let answered = timeout(PATIENCE, send_raw(server.address, sent.as_bytes())).await;
    answered.unwrap_or_else(|_| panic!("{name}: the connection goes on"))
}

fn statuses(answers: &str) -> Vec<&str> {
    answers.split("HTTP/1.").skip(1).filter_map(|answer| answer.get(2..5)).collect()
}

#[tokio::test]
async fn whoever_could_be_read_in_two_ways_is_refused_and_nothing_behind_it_is_read() {
    let database = Database::fresh().await;
    let server = Server::start(&database, "api").await;
    let publisher = server.publisher().await;
    let token = publisher.tokens()[1];
    let behind = publish(token, "content-length: 3\r\nconnection: close\r\n", "[2]");
    let mut wrong = Vec::new();
    let requests = REFUSED.iter().map(|(name, framing, body)| (*name, publish(token, framing, body)));
    let heads = REFUSED_HEADS.iter().map(|(name, head)| (*name, (*head).to_owned()));
    for (name, request) in requests.chain(heads) {
        let answered = answers(&server, name, &request, &behind).await;
        let stored = count(database.pool(), "SELECT count(*) FROM postrider.events").await;
        if statuses(&answered) != ["400"] || stored > 0 {
            wrong.push(format!("{name}: {stored} stored, {answered:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Without this, the test above would find nothing.
#[tokio::test]
async fn requests_that_follow_one_another_on_a_connection_are_all_read() {
    let database = Database::fresh().await;
    let server = Server::start(&database, "api").await;
    let publisher = server.publisher().await;
    let token = publisher.tokens()[1];
    let behind = publish(token, "content-length: 5\r\nconnection: close\r\n", "[\n2\n]");
    let before = [
        publish(token, "content-length: 5\r\n", "[\n1\n]"),
        publish(token, "transfer-encoding: chunked\r\n", "3;x=y\r\n[\n1\r\n2\r\n\n]\r\n0\r\nz: 1\r\n\r\n"),
        format!("\r\n{}", publish(token, "Content-Length:3\t\r\n", "[1]")),
    ];
    let answered = answers(&server, "all", &before.concat(), &behind).await;
    assert_eq!(statuses(&answered), ["202"; 4], "{answered:?}");
    let bodies: Vec<Vec<u8>> = sqlx::query_scalar("SELECT body FROM postrider.events ORDER BY event_id")
        .fetch_all(database.pool())
        .await
        .unwrap();
    let bodies: Vec<String> = bodies.into_iter().map(|body| String::from_utf8(body).unwrap()).collect();
    assert_eq!(bodies, ["[\n1\n]", "[\n1\n]", "[1]", "[\n2\n]"], "byte for byte");
}
