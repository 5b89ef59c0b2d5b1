//! Each script does what its path says.

use std::io::ErrorKind;

use tokio::io::AsyncReadExt;

use crate::exchange::{open, send, start};

#[tokio::test]
async fn paths_answer_by_their_script() {
    let simulator = start().await;
    for (target, status, header) in [
        ("/ok", "HTTP/1.1 200 OK", ""),
        ("/status/410", "HTTP/1.1 410 Gone", ""),
        ("/status/301", "HTTP/1.1 301 Moved Permanently", "location: /ok"),
        ("/rate-limited?retryAfter=120", "HTTP/1.1 429 Too Many Requests", "retry-after: 120"),
        ("/slow/1", "HTTP/1.1 200 OK", ""),
        ("/nowhere", "HTTP/1.1 404 Not Found", ""),
        ("/token/60", "HTTP/1.1 200 OK", "content-type: application/json"),
        ("/flap/1/1", "HTTP/1.1 503 Service Unavailable", ""),
        ("/flap/1/1", "HTTP/1.1 200 OK", ""),
    ] {
        let (head, _) = send(&simulator, "POST", target, "{}").await.unwrap();
        assert!(head.starts_with(status) && head.contains(header), "{target}: {head}");
    }
    assert_eq!(simulator.total(), 9);
    let newest = &simulator.requests()[0];
    assert_eq!((newest.number, newest.target.as_str(), newest.answer.as_str()), (9, "/flap/1/1", "200"));
}

#[tokio::test]
async fn connections_break_as_asked() {
    let simulator = start().await;
    assert_eq!(send(&simulator, "POST", "/close", "{}").await.unwrap().0, "");
    assert_eq!(
        send(&simulator, "POST", "/reset", "{}").await.unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
}

#[tokio::test]
async fn a_hanging_request_is_seen_and_does_not_hold_up_the_stop() {
    let simulator = start().await;
    let mut stream = open(&simulator, "POST", "/hang", "", "{}").await;
    let received = simulator.wait_for(|received| received.answer == "hang").await;
    assert_eq!((received.body.as_str(), received.body_bytes), ("{}", 2));
    simulator.stop().await;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.is_empty(), "{rest:?}");
}
