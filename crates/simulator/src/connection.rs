//! Serves one connection: reads a request, records it, answers as its path says.
//!
//! Invariant: a request is recorded before it is answered.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header, request};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use sha2::{Digest, Sha256};
use tokio::{net::TcpStream, sync::watch};

use crate::{
    Shared, control,
    record::{MAX_BODY_SHOWN_BYTES, Received},
    script::{Answer, SCRIPTS, Script},
};

/// Longest body read, in bytes: twice what Postrider accepts.
const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;
/// How long a client may take to send a request's head.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a request gets no answer; hyper then ends the connection.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("the script closes the connection")]
    Closed,
    #[error("the script resets the connection")]
    Reset,
    #[error("the body could not be read")]
    Unreadable,
}

type Answered = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, NoAnswer>> + Send>>;

/// Serves until the client leaves, a script ends the connection, or the simulator stops.
pub(crate) async fn serve(stream: TcpStream, shared: Arc<Shared>, mut stopping: watch::Receiver<bool>) {
    // An answer is one small write: waiting for more to send with it would only add latency.
    let _ = stream.set_nodelay(true);
    let is_reset = Arc::new(AtomicBool::new(false));
    let reset_asked = Arc::clone(&is_reset);
    let service = service_fn(move |request| -> Answered {
        let (shared, reset_asked) = (Arc::clone(&shared), Arc::clone(&reset_asked));
        Box::pin(async move {
            let answered = respond(request, &shared).await;
            reset_asked.store(matches!(answered, Err(NoAnswer::Reset)), Ordering::Relaxed);
            answered
        })
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let stopped = tokio::select! {
        _ = poll_fn(|context| connection.poll_without_shutdown(context)) => false,
        _ = stopping.wait_for(|stop| *stop) => true,
    };
    if stopped {
        Pin::new(&mut connection).graceful_shutdown();
        let _ = poll_fn(|context| connection.poll_without_shutdown(context)).await;
    }
    let stream = connection.into_parts().io.into_inner();
    if is_reset.load(Ordering::Relaxed) {
        // Without lingering, closing sends RST instead of FIN: the client sees a reset connection.
        let _ = stream.set_zero_linger();
    }
}

async fn respond(request: Request<Incoming>, shared: &Shared) -> Result<Response<Full<Bytes>>, NoAnswer> {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, MAX_BODY_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            return Ok(control::text(StatusCode::PAYLOAD_TOO_LARGE, "the body is over 2 MiB\n"));
        }
        Err(_) => return Err(NoAnswer::Unreadable),
    };
    let path = head.uri.path();
    if control::is_control(path) {
        return Ok(control::answer(shared, &head.method, &head.uri, &body));
    }
    let script = Script::parse(path, head.uri.query());
    let answer = script.as_ref().map_or_else(not_found, |script| script.answer(path, &shared.flaps));
    shared.requests.add(received(&head, &body, &answer, shared));
    match answer {
        Answer::Status { status, retry_after, delay } => {
            tokio::time::sleep(delay).await;
            let content = if script.is_some() { "" } else { SCRIPTS };
            Ok(with_headers(control::text(status, content), retry_after))
        }
        Answer::Token { expires_in_s } => Ok(control::token(expires_in_s)),
        Answer::Hang => std::future::pending().await,
        Answer::Close => Err(NoAnswer::Closed),
        Answer::Reset => Err(NoAnswer::Reset),
    }
}

fn not_found() -> Answer {
    Answer::Status { status: StatusCode::NOT_FOUND, retry_after: None, delay: Duration::ZERO }
}

fn with_headers(
    mut response: Response<Full<Bytes>>,
    retry_after: Option<HeaderValue>,
) -> Response<Full<Bytes>> {
    if response.status().is_redirection() {
        response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/ok"));
    }
    if let Some(retry_after) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, retry_after);
    }
    response
}

fn received(head: &request::Parts, body: &Bytes, answer: &Answer, shared: &Shared) -> Received {
    let now = (shared.now)();
    let shown = &body[..body.len().min(MAX_BODY_SHOWN_BYTES)];
    Received {
        number: 0,
        received_at: now,
        method: head.method.as_str().to_owned(),
        target: head.uri.path_and_query().map_or_else(|| head.uri.to_string(), ToString::to_string),
        webhook_id: head.headers.get("webhook-id").map(text_of),
        signature: shared.trusted.check(&head.headers, body, now),
        answer: answer.to_string(),
        headers: headers_of(&head.headers),
        body_bytes: body.len(),
        body_sha256: hex::encode(Sha256::digest(body)),
        body: String::from_utf8_lossy(shown).into_owned(),
    }
}

fn headers_of(headers: &HeaderMap) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), text_of(value))).collect()
}

fn text_of(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}
