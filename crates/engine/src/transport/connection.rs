//! One HTTP/1.1 connection over hyper's connection API, driven by the task that waits for the answer.
//!
//! There is no task per connection: whoever polls for the answer polls the connection first, so one wake-up of the
//! socket does both. While a connection waits in the pool nobody polls it; what happened to it meanwhile shows when it
//! is asked whether it is quiet. Because of that the answer's and the body's own wakers are never needed: they only
//! change while the connection is being polled, right before they are looked at.

use std::{
    future::{Future as _, poll_fn},
    net::IpAddr,
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::{Body as _, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use postrider_core::retry::{Failure, FailureKind};
use zeroize::Zeroizing;

use super::socket::{Socket, Stream};

/// Most bytes of an answer's head.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most bytes of an answer's body that are read; a longer one costs the connection, not the outcome.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// Most bytes received for one request: head, body, informational answers (1xx) and framing together.
const MAX_RECEIVED_BYTES: usize = 2 * (MAX_HEAD_BYTES + MAX_BODY_BYTES);

pub(super) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: http1::Connection<TokioIo<Stream>, Full<Bytes>>,
    socket: Socket,
    peer: IpAddr,
    has_ended: bool,
    /// How many more bytes of the current answer's body may be read.
    body_left: usize,
}

/// Why no head of an answer came.
#[derive(Debug)]
pub(super) enum Broken {
    /// The connection ended before a byte of the answer: on a kept connection, most likely before the request.
    Untouched,
    Cut,
    TooLarge,
    NotHttp,
}

/// Why an answer's body has no end.
#[derive(Debug)]
enum BodyBroken {
    Cut,
    TooLarge,
}

impl Connection {
    /// `stream` runs over `socket`, which is connected to `peer`.
    pub(super) async fn open(stream: Stream, socket: Socket, peer: IpAddr) -> Result<Box<Self>, Failure> {
        let opened = http1::Builder::new()
            .max_buf_size(MAX_HEAD_BYTES)
            .max_header_size(MAX_HEAD_BYTES)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, driver) = opened.map_err(|_| Failure::from(Broken::Cut))?;
        Ok(Box::new(Self { sender, driver, socket, peer, has_ended: false, body_left: 0 }))
    }

    pub(super) const fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Whether the connection is still open, with nothing in it that would be taken for the next answer.
    pub(super) fn is_quiet(&self) -> bool {
        self.socket.is_quiet()
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn request(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Broken> {
        self.socket.begin(MAX_RECEIVED_BYTES);
        self.body_left = MAX_BODY_BYTES;
        let mut answer = pin!(self.sender.send_request(request));
        let (driver, has_ended) = (&mut self.driver, &mut self.has_ended);
        let answered = poll_fn(|context| {
            drive(driver, has_ended, context);
            match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => Poll::Ready(answer.map_err(Some)),
                Poll::Pending if *has_ended => Poll::Ready(Err(None)),
                Poll::Pending => Poll::Pending,
            }
        });
        answered.await.map_err(|error| self.broken(error.as_ref()))
    }

    /// Reads the rest of an answer, so that the connection can be used again; tells whether it can.
    pub(super) async fn finish(&mut self, body: &mut Incoming) -> bool {
        poll_fn(|context| self.poll_finish(body, context)).await
    }

    /// What [`Self::finish`] would tell, if everything is there already: no timer is needed for that.
    pub(super) fn finish_now(&mut self, body: &mut Incoming) -> Option<bool> {
        match self.poll_finish(body, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(is_reusable) => Some(is_reusable),
            Poll::Pending => None,
        }
    }

    /// Reads an answer's body to its end.
    pub(super) async fn read(&mut self, mut body: Incoming) -> Result<Zeroizing<Vec<u8>>, Failure> {
        let mut whole = Zeroizing::new(Vec::new());
        let read =
            poll_fn(|context| self.poll_body(&mut body, context, |part| whole.extend_from_slice(part)));
        read.await?;
        Ok(whole)
    }

    fn poll_finish(&mut self, body: &mut Incoming, context: &mut Context<'_>) -> Poll<bool> {
        let read = ready!(self.poll_body(body, context, |_part| ()));
        Poll::Ready(read.is_ok() && self.is_idle())
    }

    /// Ready at the end of the body, or when it can be read no further.
    fn poll_body(
        &mut self,
        body: &mut Incoming,
        context: &mut Context<'_>,
        mut keep: impl FnMut(&[u8]),
    ) -> Poll<Result<(), BodyBroken>> {
        let mut was_driven = false;
        while !body.is_end_stream() {
            match Pin::new(&mut *body).poll_frame(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(None) => break,
                Poll::Ready(Some(Err(_))) if self.socket.is_over_limit() => {
                    return Poll::Ready(Err(BodyBroken::TooLarge));
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(BodyBroken::Cut)),
                Poll::Ready(Some(Ok(frame))) => {
                    let part = frame.data_ref().map(Bytes::as_ref).unwrap_or_default();
                    let Some(left) = self.body_left.checked_sub(part.len()) else {
                        return Poll::Ready(Err(BodyBroken::TooLarge));
                    };
                    self.body_left = left;
                    keep(part);
                    was_driven = false;
                }
                Poll::Pending if self.has_ended => return Poll::Ready(Err(BodyBroken::Cut)),
                Poll::Pending if was_driven => return Poll::Pending,
                // Asking for the body is what lets the connection read it.
                Poll::Pending => {
                    drive(&mut self.driver, &mut self.has_ended, context);
                    was_driven = true;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Whether hyper, too, holds the exchange to be over and the connection to be kept; it refuses when more was
    /// received than the answer.
    fn is_idle(&mut self) -> bool {
        drive(&mut self.driver, &mut self.has_ended, &mut Context::from_waker(Waker::noop()));
        !self.has_ended && self.sender.is_ready()
    }

    fn broken(&self, error: Option<&hyper::Error>) -> Broken {
        if self.socket.is_over_limit() || error.is_some_and(hyper::Error::is_parse_too_large) {
            Broken::TooLarge
        } else if error.is_some_and(hyper::Error::is_parse) {
            Broken::NotHttp
        } else if self.socket.is_answered() {
            Broken::Cut
        } else {
            Broken::Untouched
        }
    }
}

/// Polls the connection unless it has ended; how it ended shows in the answer or its body.
fn drive(
    driver: &mut http1::Connection<TokioIo<Stream>, Full<Bytes>>,
    has_ended: &mut bool,
    context: &mut Context<'_>,
) {
    *has_ended = *has_ended || Pin::new(driver).poll(context).is_ready();
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        let (kind, detail) = match broken {
            Broken::Untouched => {
                (FailureKind::ConnectionLost, "the receiver closed the connection without an answer")
            }
            Broken::Cut => (
                FailureKind::ConnectionLost,
                "the connection ended in the middle of the answer's status and headers",
            ),
            Broken::TooLarge => (FailureKind::BadResponse, "the answer's status and headers are too large"),
            Broken::NotHttp => (FailureKind::BadResponse, "what the receiver sent is not an HTTP/1.1 answer"),
        };
        Self { kind, detail: detail.to_owned() }
    }
}

impl From<BodyBroken> for Failure {
    fn from(broken: BodyBroken) -> Self {
        let (kind, detail) = match broken {
            BodyBroken::Cut => {
                (FailureKind::ConnectionLost, "the connection ended in the middle of the answer's body")
            }
            BodyBroken::TooLarge => (FailureKind::BadResponse, "the answer's body is too large"),
        };
        Self { kind, detail: detail.to_owned() }
    }
}
