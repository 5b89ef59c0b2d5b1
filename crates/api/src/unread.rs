//! What is left of a request's body when its answer is ready.
//!
//! Invariant: a connection goes on only if the body was read to its end, by the operation or here; else the answer says
//! that it was the last. A body that the operation read costs nothing here.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Error,
    body::{Body, HttpBody},
    extract::Request,
};
use bytes::Bytes;
use http::header;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::{sync::oneshot, time::timeout};

/// Most bytes that are read for nothing but to keep a connection. A new one is cheaper than more.
const MAX_DISCARDED_BYTES: u64 = 64 * 1024;

/// Longest wait for the rest of a body, by which its answer is late: head and body may come in two packets.
const DISCARD_TIMEOUT: Duration = Duration::from_millis(100);

/// Has the request's body handed back by whoever drops it before its end.
pub(crate) fn watch(request: Request) -> (Request, Rest) {
    if request.body().is_end_stream() {
        return (request, Rest { left: None, waits_for_word: false });
    }
    let waits_for_word = request.headers().contains_key(header::EXPECT);
    let (hand_back, left) = oneshot::channel();
    let request =
        request.map(|body| Body::new(Watched { body, read: Read::NotBegun, hand_back: Some(hand_back) }));
    (request, Rest { left: Some(left), waits_for_word })
}

/// What an operation leaves of a request's body.
pub(crate) struct Rest {
    /// `None`: there was no body.
    left: Option<oneshot::Receiver<Left>>,
    /// The client waits to be told that its body is wanted, or not.
    waits_for_word: bool,
}

impl Rest {
    /// Reads and discards what is left, within bounds. Whether the end of the request was reached.
    pub(crate) async fn reaches_its_end(self) -> bool {
        let Some(mut left) = self.left else { return true };
        let Left { body, read } = match left.try_recv() {
            Ok(left) => left,
            // Dropped without a word: it was read to its end.
            Err(oneshot::error::TryRecvError::Closed) => return true,
            // Somebody is still reading.
            Err(oneshot::error::TryRecvError::Empty) => return false,
        };
        match read {
            // Where a broken body ends is unknown.
            Read::Broken => return false,
            // Reading would ask for a body that nobody wants.
            Read::NotBegun if self.waits_for_word => return false,
            Read::NotBegun | Read::Begun => {}
        }
        if body.size_hint().lower() > MAX_DISCARDED_BYTES {
            return false;
        }
        timeout(DISCARD_TIMEOUT, discard(body)).await.unwrap_or(false)
    }
}

/// Whether the end came before too many bytes.
async fn discard(mut body: Body) -> bool {
    let mut discarded_bytes = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        discarded_bytes += frame.data_ref().map_or(0, |part| part.len() as u64);
        if discarded_bytes > MAX_DISCARDED_BYTES {
            return false;
        }
    }
    true
}

/// How far a body was read that was not read to its end.
#[derive(Debug, Clone, Copy)]
enum Read {
    NotBegun,
    Begun,
    Broken,
}

/// A body that was dropped before its end.
struct Left {
    body: Body,
    read: Read,
}

/// A body that hands itself back when it is dropped before its end.
struct Watched {
    body: Body,
    read: Read,
    /// `None` once the end was reached.
    hand_back: Option<oneshot::Sender<Left>>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Pending => self.read = Read::Begun,
            Poll::Ready(Some(Err(_))) => self.read = Read::Broken,
            Poll::Ready(Some(Ok(_))) if !self.body.is_end_stream() => self.read = Read::Begun,
            Poll::Ready(Some(Ok(_)) | None) => {
                // Nothing is known to come after an error, which was no end.
                if !matches!(self.read, Read::Broken) {
                    self.hand_back = None;
                }
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(hand_back) = self.hand_back.take() {
            // A request that nobody answers any more leaves nothing to care for.
            let _ = hand_back.send(Left { body: mem::take(&mut self.body), read: self.read });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures::{StreamExt as _, stream};

    use super::*;

    const PART: Bytes = Bytes::from_static(b"0123456789");

    fn parts(count: usize) -> impl futures::Stream<Item = io::Result<Bytes>> + Send {
        stream::iter(vec![PART; count]).map(Ok)
    }

    /// The rest comes after so many milliseconds.
    fn late(milliseconds: u64) -> Body {
        let rest = stream::once(async move {
            tokio::time::sleep(Duration::from_millis(milliseconds)).await;
            Ok(PART)
        });
        Body::from_stream(parts(1).chain(rest))
    }

    fn broken() -> Body {
        Body::from_stream(
            stream::iter([Err(io::Error::from(io::ErrorKind::ConnectionReset))]).chain(parts(1)),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_goes_on_only_where_the_body_ends_within_bounds() {
        let bound = usize::try_from(MAX_DISCARDED_BYTES).unwrap();
        // Each body is left as it is, and after one part was read.
        for (name, make, expected) in [
            ("none", (&|| Body::empty()) as &dyn Fn() -> Body, [true; 2]),
            ("small", &|| Body::from(PART), [true; 2]),
            ("in parts", &|| Body::from_stream(parts(3)), [true; 2]),
            ("of the most bytes", &|| Body::from(vec![0; bound]), [true; 2]),
            ("of more bytes, which are read already", &|| Body::from(vec![0; bound + 1]), [false, true]),
            ("endless", &|| Body::from_stream(stream::repeat(PART).map(Ok::<_, io::Error>)), [false; 2]),
            ("in time", &|| late(99), [true; 2]),
            ("late", &|| late(101), [false; 2]),
            ("broken", &broken, [false; 2]),
        ] {
            for (is_begun, expected) in [false, true].into_iter().zip(expected) {
                let (request, rest) = watch(Request::new(make()));
                let mut body = request.into_body();
                if is_begun {
                    let _ = body.frame().await;
                }
                drop(body);
                assert_eq!(rest.reaches_its_end().await, expected, "{name}, begun: {is_begun}");
            }
        }
    }

    #[tokio::test]
    async fn a_body_says_as_before_how_long_it_is_and_where_it_ends() {
        let (request, rest) = watch(Request::new(Body::from(PART)));
        let mut body = request.into_body();
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(10), false));
        body.frame().await.unwrap().unwrap();
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
        assert!(rest.reaches_its_end().await, "even while somebody still holds it");
    }

    #[tokio::test]
    async fn nobody_asks_for_a_body_that_is_not_wanted() {
        for (is_begun, expected) in [(false, false), (true, true)] {
            let request = Request::builder().header(header::EXPECT, "100-continue");
            let (request, rest) = watch(request.body(Body::from_stream(parts(2))).unwrap());
            let mut body = request.into_body();
            if is_begun {
                body.frame().await.unwrap().unwrap();
            }
            drop(body);
            assert_eq!(rest.reaches_its_end().await, expected, "begun: {is_begun}");
        }
    }

    #[tokio::test]
    async fn a_body_that_somebody_still_reads_is_not_read_here() {
        let (request, rest) = watch(Request::new(Body::from(PART)));
        assert!(!rest.reaches_its_end().await);
        drop(request);
    }
}
