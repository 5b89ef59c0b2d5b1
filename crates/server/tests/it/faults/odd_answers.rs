//! Receivers that answer with what no text column holds, or far too much: the attempt is recorded all the same.

use postrider_testkit::{
    ledger::Ledger,
    postgres::Database,
    receiver::{Answer, Receiver},
};

use super::scene::{OVER, outcomes, until_nothing_is_open};
use crate::server::Server;

/// What a receiver sends, and what becomes of the attempt; each failure is followed by a plain `200`.
fn answers() -> Vec<(Vec<u8>, &'static [&'static str])> {
    let delivered: &[&str] = &["delivered"];
    let retried: &[&str] = &["scheduled", "delivered"];
    let with_body = |status: &[u8], body: &[u8]| {
        let rest = format!("\r\ncontent-length: {}\r\n\r\n", body.len());
        [b"HTTP/1.1 ", status, rest.as_bytes(), body].concat()
    };
    vec![
        (with_body(b"200 OK", b"\0\0\xff\xfe\xc0\x80"), delivered),
        (with_body(b"500 \xff", b"\0"), retried),
        (with_body(b"503 \0", b""), retried),
        (b"HTTP/1.1 500 \xc3\x28\xff\r\nx: \xff\0\r\n\r\n".to_vec(), retried),
        (b"\0\0\0\0\r\n\r\n".to_vec(), retried),
        (b"\xff\xfe\r\n\r\n".to_vec(), retried),
        (
            [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".as_slice(), b"zz\r\n\0"].concat(),
            delivered,
        ),
        (with_body(b"429 Slow\r\nretry-after: \x7f\0", b"\0"), retried),
    ]
}

#[tokio::test]
async fn an_attempt_is_recorded_whatever_bytes_came_back() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let mut ledger = Ledger::default();
    for (answer, expected) in answers() {
        let shown = String::from_utf8_lossy(&answer).into_owned();
        receiver.queue([Answer::raw(answer)]);
        let accepted = publisher.publish("[1]").await;
        let delivery = publisher.wait_for_delivery(&accepted, "delivered").await;
        assert_eq!(outcomes(&publisher, &delivery).await, expected, "{shown:?}");
        ledger.accepted.push(accepted);
    }
    until_nothing_is_open(database.pool()).await;
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!((report.delivered, report.interrupted_attempts), (answers().len(), 0));
}
