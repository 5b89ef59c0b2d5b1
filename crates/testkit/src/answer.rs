//! What the scripted receiver answers: well-formed responses, exact bytes, or a broken connection.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::watch;

/// Holds answers back until the test opens it.
#[derive(Debug, Clone)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Gate {
    /// Lets every waiting and every later answer pass.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn opened(&self) {
        let _ = self.0.subscribe().wait_for(|is_open| *is_open).await;
    }
}

/// One answer, made of steps the receiver takes in turn.
#[derive(Debug, Clone)]
pub struct Answer {
    gate: Option<Gate>,
    delay: Option<Duration>,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    Response {
        status: u16,
        headers: Vec<(String, String)>,
        body: Bytes,
    },
    /// Steps of a misbehaving receiver, as they are.
    Steps(Vec<Step>),
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Wait(Gate),
    Pause(Duration),
    Send(Bytes),
    Close,
    Reset,
    Never,
}

impl Answer {
    pub fn ok() -> Self {
        Self::status(200)
    }

    /// A well-formed response; the connection stays open.
    pub fn status(status: u16) -> Self {
        let content = Content::Response { status, headers: Vec::new(), body: Bytes::new() };
        Self { gate: None, delay: None, content }
    }

    /// Exactly these bytes, then the connection is closed.
    pub fn raw(bytes: impl Into<Bytes>) -> Self {
        Self::steps(vec![Step::Send(bytes.into()), Step::Close])
    }

    /// Exactly these bytes; the connection stays open.
    pub fn raw_open(bytes: impl Into<Bytes>) -> Self {
        Self::steps(vec![Step::Send(bytes.into())])
    }

    /// These bytes one at a time with a pause after each, then the connection is closed.
    pub fn trickle(bytes: impl Into<Bytes>, pause: Duration) -> Self {
        let bytes: Bytes = bytes.into();
        let one_by_one =
            (0..bytes.len()).flat_map(|at| [Step::Send(bytes.slice(at..=at)), Step::Pause(pause)]);
        Self::steps(one_by_one.chain([Step::Close]).collect())
    }

    /// Closes the connection without an answer.
    pub fn close() -> Self {
        Self::steps(vec![Step::Close])
    }

    /// Resets the connection without an answer.
    pub fn reset() -> Self {
        Self::steps(vec![Step::Reset])
    }

    /// Keeps the connection open and never answers.
    pub fn never() -> Self {
        Self::steps(vec![Step::Never])
    }

    /// Adds a header; only a well-formed response has any.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match &mut self.content {
            Content::Response { headers, .. } => headers.push((name.to_lowercase(), value.to_owned())),
            Content::Steps(_) => panic!("raw answers carry their headers in their bytes"),
        }
        self
    }

    /// Sets the body; only a well-formed response has one.
    #[must_use]
    pub fn body(mut self, content: impl Into<Bytes>) -> Self {
        match &mut self.content {
            Content::Response { body, .. } => *body = content.into(),
            Content::Steps(_) => panic!("raw answers carry their body in their bytes"),
        }
        self
    }

    /// Holds the answer back until the gate opens.
    #[must_use]
    pub fn after(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    /// Holds the answer back for a time, for receivers whose slowness is what a run is about.
    #[must_use]
    pub fn late(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    fn steps(steps: Vec<Step>) -> Self {
        Self { gate: None, delay: None, content: Content::Steps(steps) }
    }

    pub(crate) fn into_steps(self) -> Vec<Step> {
        let steps = match self.content {
            Content::Response { status, headers, body } => {
                vec![Step::Send(response(status, &headers, &body))]
            }
            Content::Steps(steps) => steps,
        };
        let holds = self.gate.map(Step::Wait).into_iter().chain(self.delay.map(Step::Pause));
        holds.chain(steps).collect()
    }
}

fn response(status: u16, headers: &[(String, String)], body: &[u8]) -> Bytes {
    let reason = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    let mut bytes = format!("HTTP/1.1 {status} {}\r\n", reason.unwrap_or("Unknown"));
    for (name, value) in headers {
        bytes.extend([name.as_str(), ": ", value, "\r\n"]);
    }
    // 204 and 304 have no body by definition and must not state a length.
    if !matches!(status, 204 | 304) {
        bytes.extend(["content-length: ", &body.len().to_string(), "\r\n"]);
    }
    bytes.push_str("\r\n");
    [bytes.as_bytes(), body].concat().into()
}
