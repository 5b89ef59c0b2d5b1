//! Receivers that misbehave: the shared cases, and what each fault is called.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use postrider_core::retry::RetryAfter;
use serde_json::Value;

use super::*;

/// Enough for a loopback answer, short enough to wait for where none comes.
const SHORT: Duration = Duration::from_millis(400);

/// What a raw receiver does after each request.
#[derive(Clone)]
enum Behaviour {
    Send { bytes: Vec<u8>, then_close: bool },
    OneByteAtATime(Vec<u8>),
}

fn misbehaving(behaviour: Behaviour) -> SocketAddr {
    receiver(move |mut stream| {
        if read_request(&mut stream).is_none() {
            return;
        }
        match &behaviour {
            Behaviour::Send { bytes, then_close } => {
                let _ = stream.write_all(bytes);
                if !then_close {
                    read_to_end(&mut stream);
                }
            }
            Behaviour::OneByteAtATime(bytes) => {
                for byte in bytes {
                    // The pace of this receiver, not a wait for something: faster than any idle timeout.
                    std::thread::sleep(SHORT / 8);
                    if stream.write_all(&[*byte]).is_err() {
                        return;
                    }
                }
            }
        }
    })
}

fn behaviour(receiver: &Value) -> Option<Behaviour> {
    let text = |field: &str| receiver[field].as_str().map(str::to_owned);
    let then_close = receiver["close"] == true;
    if let Some(encoded) = text("send") {
        return Some(Behaviour::Send { bytes: BASE64.decode(encoded).expect("base64"), then_close });
    }
    if let Some(repeated) = text("send_repeat") {
        let times = usize::try_from(receiver["times"].as_u64().expect("times")).expect("small");
        let bytes = repeated.repeat(times) + &text("then").expect("then");
        return Some(Behaviour::Send { bytes: bytes.into(), then_close });
    }
    if let Some(head) = text("send_head") {
        // Nobody may inflate it, so it only has to begin like gzip: deflate makes about 1/1000 of zeros.
        let length = receiver["inflated_bytes"].as_u64().expect("length") / 1000;
        let mut bytes = head.replace('*', &length.to_string()).into_bytes();
        bytes.extend([0x1f, 0x8b, 8]);
        bytes.resize(bytes.len() + usize::try_from(length).expect("small"), 0);
        return Some(Behaviour::Send { bytes, then_close });
    }
    (receiver["accept_then"] == "one_byte_per_second")
        .then(|| Behaviour::OneByteAtATime(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()))
}

#[tokio::test]
async fn the_shared_cases_end_as_expected() {
    let file: Value =
        serde_json::from_str(include_str!("../../../../../cases/receiver-faults.json")).expect("JSON");
    let mut checked = 0;
    for case in file["faults"].as_array().expect("faults") {
        let what = &case["receiver"];
        let (bench, address) = if what["connect"] == "blackhole" {
            (Setup { is_blackhole: true, ..Setup::default() }.build(), SocketAddr::from(([127, 0, 0, 1], 9)))
        } else if let Some(behaviour) = behaviour(what) {
            (Setup::default().build(), misbehaving(behaviour))
        } else {
            assert!(what["tls"].is_string(), "a case without a receiver: {case}");
            continue; // The TLS tests hold them.
        };
        let exchange = bench.post_within(&format!("http://{address}/hook"), SHORT).await;
        let is_success = status(&exchange).is_some_and(|status| (200..300).contains(&status));
        match case["outcome"].as_str() {
            Some("success") => assert!(is_success, "{case}: {exchange:?}"),
            Some("failure" | "failure+disable") => assert!(!is_success, "{case}: {exchange:?}"),
            // Ours: the status line decides, and informational answers are skipped within the limit on bytes.
            Some("deterministic") => assert_eq!(status(&exchange), Some(200), "{case}: {exchange:?}"),
            other => panic!("unknown outcome {other:?}"),
        }
        assert_eq!(bench.dial.dialled().len(), 1, "no redirect, no retry: {case}");
        checked += 1;
    }
    assert!(checked >= 20, "the file holds receivers");
}

#[tokio::test]
async fn each_fault_has_its_name() {
    let lost = FailureKind::ConnectionLost;
    let bad = FailureKind::BadResponse;
    let not_http = "what the receiver sent is not an HTTP/1.1 answer";
    let too_large = "the answer's status and headers are too large";
    let none = "the receiver closed the connection without an answer";
    let cut = "the connection ended in the middle of the answer's status and headers";
    for (bytes, kind, detail) in [
        (String::new(), lost, none),
        ("HTTP/1.1 20".to_owned(), lost, cut),
        ("HTTP/1.1 200 OK\r\nX: ".to_owned(), lost, cut),
        ("HTTP/1.1 abc OK\r\n\r\n".to_owned(), bad, not_http),
        ("SSH-2.0-OpenSSH_9.7\r\n".to_owned(), bad, not_http),
        ("hello".to_owned(), bad, not_http),
        ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_owned(), bad, not_http),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(), bad, not_http),
        ("HTTP/1.1 200 OK\r\nX\0: 1\r\n\r\n".to_owned(), bad, not_http),
        (format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(100_000)), bad, too_large),
        (format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: 1\r\n".repeat(101)), bad, too_large),
        ("HTTP/1.1 100 Continue\r\n\r\n".repeat(20_000), bad, too_large),
    ] {
        let address = misbehaving(Behaviour::Send { bytes: bytes.clone().into(), then_close: true });
        let exchange = Setup::default().build().post(&format!("http://{address}/")).await;
        let shown: String = bytes.chars().take(50).collect();
        assert_eq!(
            exchange.outcome,
            Outcome::Failed(Failure { kind, detail: detail.to_owned() }),
            "{shown:?}"
        );
        assert!(!exchange.reconnected);
    }
}

#[tokio::test]
async fn nothing_after_the_head_changes_the_outcome() {
    let endless = "x".repeat(8 << 20);
    for (head, body) in [
        ("Content-Length: 5", "ok"),
        ("Transfer-Encoding: chunked", "ZZ\r\nx"),
        ("Transfer-Encoding: chunked", "2\r\nok\r\n0\r\n"),
        ("Content-Length: 99999999999", endless.as_str()),
        ("Connection: close", endless.as_str()),
        ("Content-Type: text/plain", "\0\u{80}"),
    ] {
        let bytes = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").into_bytes();
        let address = misbehaving(Behaviour::Send { bytes, then_close: true });
        let exchange = Setup::default().build().post(&format!("http://{address}/")).await;
        assert_eq!(status(&exchange), Some(200), "{head}: {exchange:?}");
    }
}

#[tokio::test]
async fn an_endless_body_is_cut_off_early() {
    let (sent, total) = std::sync::mpsc::channel();
    let address = receiver(move |mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000)).into_bytes();
        let mut total = 0;
        while stream.write_all(&chunk).is_ok() {
            total += chunk.len();
        }
        let _ = sent.send(total);
    });
    let bench = Setup::default().build();
    assert_eq!(status(&bench.post(&format!("http://{address}/")).await), Some(200));
    // The receiver could write only what fits the buffers of both sides before the connection was closed.
    let total = total.recv().expect("the receiver noticed that the connection was not kept");
    assert!(total < 32 << 20, "{total} bytes were taken");
}

#[tokio::test]
async fn a_body_that_stalls_does_not_hold_the_outcome_back() {
    let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok".to_vec();
    let address = misbehaving(Behaviour::Send { bytes, then_close: false });
    let bench = Setup::default().build();
    // Without a limit of its own the body would be waited for until the deadline, and the test with it.
    let exchange = tokio::time::timeout(AMPLE / 2, bench.post(&format!("http://{address}/"))).await;
    assert_eq!(status(&exchange.expect("in time")), Some(200));
}

#[tokio::test]
async fn silence_ends_at_the_deadline() {
    let address = misbehaving(Behaviour::Send { bytes: Vec::new(), then_close: false });
    let exchange = Setup::default().build().post_within(&format!("http://{address}/"), SHORT).await;
    assert_failed(&exchange, FailureKind::Timeout, "no answer in time");
}

#[tokio::test]
async fn a_closed_port_is_a_connect_failure() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("address");
    drop(listener);
    let exchange = Setup::default().build().post(&format!("http://{address}/")).await;
    let detail = format!("nothing accepts connections on port {}", address.port());
    assert_failed(&exchange, FailureKind::Connect, &detail);
}

#[tokio::test]
async fn a_connection_that_never_comes_about_ends_in_time() {
    let bench = Setup { is_blackhole: true, ..Setup::default() }.build();
    let exchange = bench.post_within("http://127.0.0.1:9/", Duration::from_millis(50)).await;
    assert_failed(&exchange, FailureKind::Connect, "no connection within 50 ms");
}

#[tokio::test]
async fn retry_after_is_passed_on() {
    for (value, expected) in [
        ("120", Some(RetryAfter::Seconds(120))),
        ("99999999999999999999999", Some(RetryAfter::Seconds(u64::MAX))),
        (
            "Thu, 01 Jan 1970 00:00:10 GMT",
            Some(RetryAfter::At(time::OffsetDateTime::UNIX_EPOCH + 10 * time::Duration::SECOND)),
        ),
        ("1.5", None),
        ("-5", None),
        ("\u{e9}", None),
    ] {
        let address =
            answering(format!("HTTP/1.1 429 X\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n"));
        let exchange = Setup::default().build().post(&format!("http://{address}/")).await;
        assert_eq!(
            exchange.outcome,
            Outcome::Answered(Answer { status: 429, retry_after: expected }),
            "{value}"
        );
    }
}
