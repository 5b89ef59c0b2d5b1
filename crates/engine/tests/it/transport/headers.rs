//! Exactly what a receiver gets to see.

use super::*;

#[tokio::test]
async fn a_request_is_these_bytes_and_no_others() {
    let (seen, requests) = std::sync::mpsc::channel();
    let address = receiver(move |mut stream| {
        while let Some(request) = read_request(&mut stream) {
            let _ = seen.send(request);
            let cookie =
                "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nAlt-Svc: h2=\":1\"\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.write_all(cookie.as_bytes());
        }
    });
    let bench = Setup::default().build();
    let destination = Arc::new(destination(&format!("http://{address}/hook/%C3%A4?key=1")));
    // Twice over one connection: neither a cookie nor anything else is carried over.
    for _ in 0..2 {
        let mut headers = http::HeaderMap::new();
        headers.insert("webhook-id", "dlv_1".parse().expect("value"));
        headers.insert("content-type", "application/json".parse().expect("value"));
        let body = "{\"a\":1.10}".into();
        let destination = Arc::clone(&destination);
        let request =
            Outgoing { tenant_id: TENANT, method: Method::Post, destination, headers, body, timeout: AMPLE };
        assert_eq!(status(&bench.http.send(request).await), Some(200));
        let expected = format!(
            "POST /hook/%C3%A4?key=1 HTTP/1.1\r\nhost: {address}\r\nuser-agent: Postrider/{}\r\nwebhook-id: dlv_1\r\n\
             content-type: application/json\r\ncontent-length: 10\r\n\r\n{{\"a\":1.10}}",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(String::from_utf8_lossy(&requests.recv().expect("a request")), expected);
    }
    assert_eq!(bench.dial.dialled().len(), 1);
}

#[tokio::test]
async fn host_and_product_are_ours_and_an_empty_body_has_a_length() {
    let (seen, requests) = std::sync::mpsc::channel();
    let address = receiver(move |mut stream| {
        let _ = seen.send(read_request(&mut stream));
        let _ = stream.write_all(b"HTTP/1.1 204 X\r\n\r\n");
    });
    let bench = Setup::default().build();
    let destination = Arc::new(destination(&format!("http://{address}/")));
    let mut headers = http::HeaderMap::new();
    headers.insert("host", "other.example".parse().expect("value"));
    headers.insert("x-first", "1".parse().expect("value"));
    headers.append("x-first", "2".parse().expect("value"));
    headers.insert("user-agent", "other".parse().expect("value"));
    let body = bytes::Bytes::new();
    let request =
        Outgoing { tenant_id: TENANT, method: Method::Post, destination, headers, body, timeout: AMPLE };
    assert_eq!(status(&bench.http.send(request).await), Some(204));
    let request = requests.recv().expect("a request").expect("whole");
    let expected = format!(
        "POST / HTTP/1.1\r\nhost: {address}\r\nuser-agent: Postrider/{}\r\nx-first: 1\r\nx-first: 2\r\n\
         content-length: 0\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(String::from_utf8_lossy(&request), expected);
}
