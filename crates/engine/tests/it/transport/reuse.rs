//! When a connection is used again, and when it must not be.

use super::*;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Sends twice and tells how many connections that took.
async fn connections_for_two(address: SocketAddr) -> usize {
    let bench = Setup::default().build();
    for _ in 0..2 {
        let exchange = bench.post(&format!("http://{address}/")).await;
        assert_eq!(status(&exchange), Some(200), "{exchange:?}");
    }
    bench.dial.dialled().len()
}

#[tokio::test]
async fn only_complete_answers_that_allow_it_keep_the_connection() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let large = format!("HTTP/1.1 200 OK\r\nContent-Length: 65537\r\n\r\n{}", "x".repeat(65_537));
    let largest = format!("HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n{}", "x".repeat(65_536));
    let pipelined = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n";
    for (answer, connections) in [
        (std::str::from_utf8(ANSWER).expect("text"), 1),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1),
        (chunked, 1),
        (largest.as_str(), 1),
        (large.as_str(), 2),
        ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 2),
        ("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 2),
        (pipelined, 2),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nok", 2),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\r\n", 2),
    ] {
        let shown: String = answer.chars().take(60).collect();
        assert_eq!(connections_for_two(answering(answer)).await, connections, "{shown:?}");
    }
}

/// The extra answer is not in the same segment: it comes while the connection waits.
#[tokio::test]
async fn what_arrives_while_a_connection_waits_is_never_the_next_answer() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (sent, was_sent) = std::sync::mpsc::channel();
    let wait = Mutex::new(wait);
    let address = receiver(move |mut stream| {
        if read_request(&mut stream).is_none() {
            return;
        }
        let _ = stream.write_all(ANSWER);
        if wait.lock().expect("lock").recv().is_ok() {
            let _ = stream.write_all(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n");
            let _ = sent.send(());
            read_to_end(&mut stream);
        }
    });
    let bench = Setup::default().build();
    let url = format!("http://{address}/");
    assert_eq!(status(&bench.post(&url).await), Some(200));
    go.send(()).expect("the receiver waits");
    was_sent.recv().expect("the extra answer is in the socket");
    drop(go);
    let exchange = bench.post(&url).await;
    assert_eq!(status(&exchange), Some(200));
    assert!(!exchange.reconnected, "it was seen before anything was sent");
    assert_eq!(bench.dial.dialled().len(), 2);
}

/// An answer that comes when the next request is on its way already cannot be told from that one's.
#[tokio::test]
async fn an_extra_answer_decides_about_no_other_tenant() {
    let other = TenantId::from_uuid(Uuid::from_u128(2));
    let address = receiver(move |mut stream| {
        if read_request(&mut stream).is_none() {
            return;
        }
        let _ = stream.write_all(ANSWER);
        if read_request(&mut stream).is_some() {
            let _ = stream.write_all(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let bench = Setup::default().build();
    let url = format!("http://{address}/");
    for (tenant, expected, connections) in [(TENANT, 200, 1), (other, 200, 2), (TENANT, 500, 2)] {
        assert_eq!(status(&bench.post_for(tenant, &url, AMPLE).await), Some(expected));
        assert_eq!(bench.dial.dialled().len(), connections);
    }
}

#[tokio::test]
async fn a_connection_closed_while_it_waits_is_replaced_before_anything_is_sent() {
    let (closed, was_closed) = std::sync::mpsc::channel();
    let address = receiver(move |mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(ANSWER);
        drop(stream);
        let _ = closed.send(());
    });
    let bench = Setup::default().build();
    for _ in 0..2 {
        let exchange = bench.post(&format!("http://{address}/")).await;
        assert_eq!((status(&exchange), exchange.reconnected), (Some(200), false));
        was_closed.recv().expect("closed");
    }
    assert_eq!(bench.dial.dialled().len(), 2);
}

/// The receiver closes a kept connection upon the second request: the race that every kept connection has.
#[tokio::test]
async fn a_kept_connection_that_dies_under_a_request_is_replaced_once_and_told() {
    let served = AtomicUsize::new(0);
    let address = receiver(move |mut stream| {
        while read_request(&mut stream).is_some() {
            if served.fetch_add(1, Relaxed) == 1 {
                return;
            }
            let _ = stream.write_all(ANSWER);
        }
    });
    let bench = Setup::default().build();
    let url = format!("http://{address}/");
    for (reconnected, connections) in [(false, 1), (true, 2), (false, 2)] {
        let exchange = bench.post(&url).await;
        assert_eq!((status(&exchange), exchange.reconnected), (Some(200), reconnected));
        assert_eq!(bench.dial.dialled().len(), connections);
    }
}

#[tokio::test]
async fn a_new_connection_that_dies_is_not_tried_again() {
    let bench = Setup::default().build();
    let exchange =
        bench.post(&format!("http://{}/", receiver(|mut stream| drop(read_request(&mut stream))))).await;
    let detail = "the receiver closed the connection without an answer";
    assert_failed(&exchange, FailureKind::ConnectionLost, detail);
    assert!(!exchange.reconnected);
    assert_eq!(bench.dial.dialled().len(), 1);
}

/// Once a byte of the answer was there the request was read, and sending it again would be a second delivery.
#[tokio::test]
async fn a_kept_connection_that_dies_within_an_answer_is_not_replaced() {
    let address = receiver(|mut stream| {
        read_request(&mut stream);
        let _ = stream.write_all(ANSWER);
        read_request(&mut stream);
        let _ = stream.write_all(b"H");
    });
    let bench = Setup::default().build();
    let url = format!("http://{address}/");
    assert_eq!(status(&bench.post(&url).await), Some(200));
    let exchange = bench.post(&url).await;
    let detail = "the connection ended in the middle of the answer's status and headers";
    assert_failed(&exchange, FailureKind::ConnectionLost, detail);
    assert_eq!(bench.dial.dialled().len(), 1);
}

#[tokio::test]
async fn only_young_connections_are_used_again() {
    let bench = Setup::default().build();
    let url = format!("http://{}/", answering(ANSWER));
    for (pause, connections) in [(0, 1), (29, 1), (30, 2)] {
        bench.clock.advance(Duration::from_secs(pause));
        bench.http.tidy();
        bench.post(&url).await;
        assert_eq!(bench.dial.dialled().len(), connections, "after {pause} s");
    }
}

/// Nobody sends to this receiver again: its connection is closed by what happens elsewhere, or by the caller's tidying.
#[tokio::test]
async fn old_connections_are_closed_even_where_nothing_is_sent_any_more() {
    let (closed, was_closed) = std::sync::mpsc::channel();
    let address = receiver(move |mut stream| {
        while read_request(&mut stream).is_some() {
            let _ = stream.write_all(ANSWER);
        }
        let _ = closed.send(());
    });
    let bench = Setup::default().build();
    let keep = async || assert_eq!(status(&bench.post(&format!("http://{address}/")).await), Some(200));

    keep().await;
    bench.clock.advance(Duration::from_secs(30));
    bench.http.tidy();
    was_closed.recv_timeout(AMPLE).expect("tidying closed it");

    keep().await;
    bench.clock.advance(Duration::from_secs(30));
    // This one keeps no connection: looking for one is enough.
    bench.post(&format!("http://{}/", answering("HTTP/1.0 200 OK\r\n\r\n"))).await;
    was_closed.recv_timeout(AMPLE).expect("sending elsewhere closed it");
}

/// The barrier makes every request of a round need a connection of its own.
#[tokio::test]
async fn no_more_than_64_connections_wait_for_one_receiver() {
    let bench = Setup::default().build();
    let all_connected = Arc::new(std::sync::Barrier::new(70));
    let address = receiver(move |mut stream| {
        while read_request(&mut stream).is_some() {
            all_connected.wait();
            let _ = stream.write_all(ANSWER);
        }
    });
    let url = format!("http://{address}/");
    for connections in [70, 70 + 6] {
        futures::future::join_all((0..70).map(|_| bench.post(&url))).await;
        assert_eq!(bench.dial.dialled().len(), connections);
    }
}
