//! A plain client: writes a request, reads whatever comes back until the connection ends.

use std::{io, net::Ipv4Addr, sync::Arc};

use postrider_simulator::{Settings, Simulator};
use time::OffsetDateTime;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub(crate) const NOW_S: i64 = 1_614_265_330;

pub(crate) async fn start() -> Simulator {
    let now = Arc::new(|| OffsetDateTime::from_unix_timestamp(NOW_S).expect("a valid time"));
    Simulator::start(Settings { listen: (Ipv4Addr::LOCALHOST, 0).into(), now })
        .await
        .expect("a free loopback port")
}

/// Sends a request and returns the answer's status line and body.
pub(crate) async fn send(
    simulator: &Simulator,
    method: &str,
    target: &str,
    body: &str,
) -> io::Result<(String, String)> {
    send_with(simulator, method, target, "", body).await
}

pub(crate) async fn send_with(
    simulator: &Simulator,
    method: &str,
    target: &str,
    headers: &str,
    body: &str,
) -> io::Result<(String, String)> {
    let mut stream = open(simulator, method, target, headers, body).await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer.as_str(), ""));
    Ok((head.to_owned(), body.to_owned()))
}

/// Sends a request and leaves the answer to the caller.
pub(crate) async fn open(
    simulator: &Simulator,
    method: &str,
    target: &str,
    headers: &str,
    body: &str,
) -> TcpStream {
    let mut stream = TcpStream::connect(simulator.address()).await.expect("the simulator listens");
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: simulator\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.expect("the request is taken");
    stream
}
