//! What comes from a client, on its way to the parser. The parser takes a line that ends in LF alone, and a head with two
//! framings; a program before us may take neither, and see one request where we would see two (RFC 9112, sections 2.2 and
//! 6.1). Both are refused here.
//!
//! Invariant: whatever is in order passes as it came. Where a line is not, its LF becomes NUL, which the parser takes in no
//! such place: the answer is `400`, and the connection ends with it. Only in a chunk's extension it takes NUL and not a bare
//! LF, so there that stays.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a line that are looked at. What is in question is shorter; else it is refused.
const KEPT_BYTES: usize = 64;

/// A connection whose incoming bytes are watched.
#[derive(Debug)]
pub(super) struct Wire<S> {
    stream: S,
    reader: Reader,
    /// Bytes that the client has taken, or its system for it.
    written: Arc<AtomicU64>,
}

impl<S> Wire<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, reader: Reader::default(), written: Arc::default() }
    }

    pub(super) fn written(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.written)
    }

    fn note(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = written {
            self.written.fetch_add(u64::try_from(*count).unwrap_or_default(), Ordering::Relaxed);
        }
    }

    pub(super) fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if let Some(fresh) = buffer.filled_mut().get_mut(before..) {
            self.reader.pass(fresh);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Follows requests from one to the next.
#[derive(Debug, Default)]
struct Reader {
    place: Place,
    line: Line,
    head: Head,
}

/// Where in a request the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    Head,
    Body {
        left: u64,
    },
    ChunkSize,
    Chunk {
        left: u64,
    },
    AfterChunk,
    Trailers,
    /// Beyond what was refused, here or by the parser: nothing that follows is read as a request.
    Over,
}

/// A line so far, without its LF.
#[derive(Debug)]
struct Line {
    start: [u8; KEPT_BYTES],
    length: usize,
    last: u8,
}

/// What the head has said so far.
#[derive(Debug, Default)]
struct Head {
    has_begun: bool,
    length: Option<u64>,
    coding: Option<Coding>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Chunked,
    /// The surface refuses it in words, and ends the connection.
    Other,
}

/// A line that is not taken.
#[derive(Debug, PartialEq, Eq)]
struct Refused;

impl Reader {
    fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let passed = match &mut self.place {
                Place::Over => return,
                Place::Body { left } | Place::Chunk { left } => {
                    let available = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    let part = available.min(*left);
                    *left -= part;
                    usize::try_from(part).unwrap_or(bytes.len())
                }
                Place::Head | Place::ChunkSize | Place::AfterChunk | Place::Trailers => self.read_line(bytes),
            };
            bytes = bytes.get_mut(passed..).unwrap_or_default();
            match self.place {
                Place::Body { left: 0 } => self.begin(),
                Place::Chunk { left: 0 } => self.place = Place::AfterChunk,
                _ => {}
            }
        }
    }

    /// Reads to the end of a line, or of what there is; how far that was.
    fn read_line(&mut self, bytes: &mut [u8]) -> usize {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.line.extend(bytes);
            return bytes.len();
        };
        let (line, rest) = bytes.split_at_mut(end);
        self.line.extend(line);
        let is_bare = !self.line.ends_well();
        let ended = if is_bare { Err(Refused) } else { self.end_line() };
        let is_refused_as_it_is = is_bare && self.place == Place::ChunkSize;
        self.place = ended.unwrap_or_else(|Refused| {
            if let Some(line_feed) = rest.first_mut().filter(|_| !is_refused_as_it_is) {
                *line_feed = 0;
            }
            Place::Over
        });
        self.line = Line::default();
        end + 1
    }

    /// Where a line leads.
    fn end_line(&mut self) -> Result<Place, Refused> {
        match self.place {
            Place::Head if self.line.is_empty() && self.head.has_begun => {
                let head = std::mem::take(&mut self.head);
                Ok(match (head.coding, head.length) {
                    (Some(Coding::Chunked), _) => Place::ChunkSize,
                    (Some(Coding::Other), _) => Place::Over,
                    (None, Some(left)) if left > 0 => Place::Body { left },
                    (None, Some(_) | None) => Place::Head,
                })
            }
            // Empty lines before a request are passed over (RFC 9112, section 2.2); one after trailers ends them.
            Place::Head | Place::Trailers if self.line.is_empty() => Ok(Place::Head),
            Place::Head => {
                if self.head.has_begun {
                    self.head.note(&self.line)?;
                }
                self.head.has_begun = true;
                Ok(Place::Head)
            }
            Place::ChunkSize => match self.line.chunk_size()? {
                0 => Ok(Place::Trailers),
                left => Ok(Place::Chunk { left }),
            },
            Place::AfterChunk => Ok(Place::ChunkSize),
            Place::Trailers => Ok(Place::Trailers),
            Place::Body { .. } | Place::Chunk { .. } | Place::Over => Ok(self.place),
        }
    }

    fn begin(&mut self) {
        self.place = Place::Head;
        self.head = Head::default();
    }
}

impl Head {
    /// Takes note of what frames the body: a length, once, or a coding, and never both.
    fn note(&mut self, line: &Line) -> Result<(), Refused> {
        if let Some(value) = line.value_of(b"content-length") {
            if self.length.is_some() || self.coding.is_some() || line.is_cut() {
                return Err(Refused);
            }
            let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
            let number = std::str::from_utf8(value).ok().filter(|_| is_number);
            self.length = Some(number.and_then(|number| number.parse().ok()).ok_or(Refused)?);
        } else if let Some(value) = line.value_of(b"transfer-encoding") {
            // Of a line that is cut it is not known what the parser will read in it.
            if self.length.is_some() || line.is_cut() {
                return Err(Refused);
            }
            let is_chunked = value.eq_ignore_ascii_case(b"chunked") && self.coding.is_none();
            self.coding = Some(if is_chunked { Coding::Chunked } else { Coding::Other });
        }
        Ok(())
    }
}

impl Default for Line {
    fn default() -> Self {
        Self { start: [0; KEPT_BYTES], length: 0, last: 0 }
    }
}

impl Line {
    fn extend(&mut self, bytes: &[u8]) {
        let Some(last) = bytes.last() else { return };
        let room = self.start.get_mut(self.length..).unwrap_or_default();
        for (place, byte) in room.iter_mut().zip(bytes) {
            *place = *byte;
        }
        self.length = self.length.saturating_add(bytes.len());
        self.last = *last;
    }

    fn ends_well(&self) -> bool {
        self.length > 0 && self.last == b'\r'
    }

    /// Nothing but its CR.
    fn is_empty(&self) -> bool {
        self.length <= 1
    }

    /// Whether it goes on after what was kept.
    fn is_cut(&self) -> bool {
        self.length > KEPT_BYTES
    }

    /// What was kept, without its CR.
    fn text(&self) -> &[u8] {
        let end = if self.is_cut() { KEPT_BYTES } else { self.length.saturating_sub(1) };
        self.start.get(..end).unwrap_or_default()
    }

    /// What a header of this name says.
    fn value_of(&self, name: &[u8]) -> Option<&[u8]> {
        let (start, rest) = self.text().split_at_checked(name.len())?;
        let value = rest.strip_prefix(b":")?;
        start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
    }

    /// Hexadecimal digits, before what else the line says.
    fn chunk_size(&self) -> Result<u64, Refused> {
        let text = self.text();
        let digits = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let digits = text.get(..digits).filter(|digits| digits.len() < KEPT_BYTES).unwrap_or_default();
        let digits = std::str::from_utf8(digits).map_err(|_| Refused)?;
        u64::from_str_radix(digits, 16).map_err(|_| Refused)
    }
}

#[cfg(test)]
mod tests;
