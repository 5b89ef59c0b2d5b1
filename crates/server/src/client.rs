//! A small HTTP/1.1 client for talking to a Postrider on this machine: the health check, and `dev`'s example.
//!
//! Invariant: plain `http://` only, one connection per request, everything bounded.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use url::Url;

/// Longest answer read, in bytes.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// What to ask.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    pub(crate) url: &'a Url,
    pub(crate) bearer: Option<&'a str>,
    /// JSON.
    pub(crate) body: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// Asks and waits for the whole answer, at most for `limit`.
pub(crate) async fn ask(ask: Ask<'_>, limit: Duration) -> anyhow::Result<Answer> {
    let url = ask.url.clone();
    match tokio::time::timeout(limit, exchange(ask)).await {
        Ok(answer) => answer,
        Err(_) => Err(anyhow!("no answer within {} s", limit.as_secs())),
    }
    .with_context(|| format!("asking {url}"))
}

async fn exchange(ask: Ask<'_>) -> anyhow::Result<Answer> {
    if ask.url.scheme() != "http" {
        bail!("only http:// URLs can be asked");
    }
    let host = ask.url.host_str().context("the URL names no host")?;
    let port = ask.url.port_or_known_default().context("the URL names no port")?;
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await.context("cannot connect")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = request(&ask, host, port)?;
    let answered = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| anyhow!("the answer could not be read: {error}"))?.to_bytes();
        anyhow::Ok(Answer { status, body })
    };
    // The connection's own end is no answer; where it breaks, the exchange says why.
    let driven = async {
        let _ = connection.await;
        std::future::pending::<std::convert::Infallible>().await
    };
    tokio::select! {
        answer = answered => answer,
        never = driven => match never {},
    }
}

fn request(ask: &Ask<'_>, host: &str, port: u16) -> anyhow::Result<Request<Full<Bytes>>> {
    let target = match ask.url.query() {
        Some(query) => format!("{}?{query}", ask.url.path()),
        None => ask.url.path().to_owned(),
    };
    let mut request = Request::builder()
        .method(ask.method.clone())
        .uri(target)
        .header(header::HOST, format!("{host}:{port}"))
        .header(header::CONNECTION, "close");
    if let Some(token) = ask.bearer {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
        value.set_sensitive(true);
        request = request.header(header::AUTHORIZATION, value);
    }
    if ask.body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    Ok(request.body(Full::from(ask.body.clone().unwrap_or_default()))?)
}
