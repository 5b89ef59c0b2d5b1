//! Sessions of the real PostgreSQL. They outlive the simulated processes that use them, since starting one costs more
//! than most of what is asked of it: a session that is given back holds no transaction and no lock.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

use crate::wire::{self, Message};

/// A session that has not answered after this time may wait for a lock.
const MAY_WAIT: Duration = Duration::from_millis(2);

const TIME_STATEMENT: &[u8] = b"time";
const SET_TIME: &str = "SELECT set_config('simulated.now', $1, false)";

/// Where the server is.
#[derive(Debug, Clone)]
pub struct Server {
    pub socket: PathBuf,
    pub user: String,
    pub database: String,
}

#[derive(Debug)]
pub struct Backend {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// Whole messages of this answer and maybe the next.
    received: VecDeque<Message>,
    answer: Vec<Message>,
    /// Names of prepared statements, by their text and the types of their parameters.
    statements: HashMap<Vec<u8>, String>,
    prepared: u64,
    /// Whether the session has a statement that tells it the time.
    takes_time: bool,
    pub pid: i32,
    /// `I`: no transaction; `T`: in one; `E`: in a failed one.
    pub status: u8,
}

impl Backend {
    pub fn connect(server: &Server, options: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(&server.socket)?;
        stream.set_read_timeout(Some(MAY_WAIT))?;
        let mut backend = Self {
            stream,
            buffer: Vec::new(),
            received: VecDeque::new(),
            answer: Vec::new(),
            statements: HashMap::new(),
            prepared: 0,
            takes_time: false,
            pid: 0,
            status: b'I',
        };
        let parameters = [
            ("user", server.user.as_str()),
            ("database", server.database.as_str()),
            ("options", options),
            ("DateStyle", "ISO, MDY"),
            ("TimeZone", "UTC"),
            ("client_encoding", "UTF8"),
            ("extra_float_digits", "2"),
        ];
        backend.stream.write_all(&wire::startup(&parameters))?;
        for message in backend.wait()? {
            match message.kind {
                b'K' => {
                    let pid = message.content.get(..4).and_then(|bytes| bytes.try_into().ok());
                    backend.pid = i32::from_be_bytes(pid.unwrap_or_default());
                }
                b'E' => return Err(io::Error::other(describe(&message))),
                _ => {}
            }
        }
        Ok(backend)
    }

    pub fn send(&mut self, messages: &[Message]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for message in messages {
            message.write_to(&mut bytes);
        }
        self.stream.write_all(&bytes)
    }

    /// The answer, up to "ready for query"; `None` when the server takes longer than usual.
    pub fn try_wait(&mut self) -> io::Result<Option<Vec<Message>>> {
        self.read_answer()
    }

    pub fn wait(&mut self) -> io::Result<Vec<Message>> {
        loop {
            if let Some(answer) = self.read_answer()? {
                return Ok(answer);
            }
        }
    }

    /// Runs a statement to its end; rows as text.
    pub fn query(&mut self, sql: &str) -> io::Result<Vec<Vec<String>>> {
        self.send(&[Message::query(sql)])?;
        let answer = self.wait()?;
        if let Some(error) = answer.iter().find(|message| message.kind == b'E') {
            return Err(io::Error::other(format!("{}: {sql}", describe(error))));
        }
        Ok(answer.iter().filter(|message| message.kind == b'D').map(row).collect())
    }

    /// What tells the session the time, to be sent just before others: it costs no round trip of its own.
    pub fn time_messages(&mut self, time: &str) -> Vec<Message> {
        let mut messages = Vec::with_capacity(3);
        if !std::mem::replace(&mut self.takes_time, true) {
            let statement = [TIME_STATEMENT, b"\0", SET_TIME.as_bytes(), b"\0\0\0"].concat();
            messages.push(Message::new(b'P', statement));
        }
        let length = u32::try_from(time.len()).unwrap_or_default().to_be_bytes();
        // No format codes, one parameter as text, results as text.
        let bind = [b"\0", TIME_STATEMENT, b"\0\0\0\0\x01", &length, time.as_bytes(), b"\0\0"].concat();
        messages.push(Message::new(b'B', bind));
        messages.push(Message::new(b'E', [0; 5]));
        messages
    }

    /// The server's own name for a statement; `true` where the server does not know the statement yet.
    pub fn statement(&mut self, text: &[u8]) -> (String, bool) {
        if let Some(name) = self.statements.get(text) {
            return (name.clone(), false);
        }
        let name = format!("s{}", self.prepared);
        self.prepared += 1;
        self.statements.insert(text.to_vec(), name.clone());
        (name, true)
    }

    /// The server refused the statement.
    pub fn forget_statement(&mut self, text: &[u8]) {
        self.statements.remove(text);
    }

    fn read_answer(&mut self) -> io::Result<Option<Vec<Message>>> {
        let mut chunk = [0; 16 * 1024];
        loop {
            self.received.extend(wire::split(&mut self.buffer));
            while let Some(message) = self.received.pop_front() {
                let is_last = message.kind == b'Z';
                if is_last {
                    self.status = message.content.first().copied().unwrap_or(b'I');
                }
                self.answer.push(message);
                if is_last {
                    return Ok(Some(std::mem::take(&mut self.answer)));
                }
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.buffer.extend(&chunk[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// What an error says: its code and its words.
pub fn describe(error: &Message) -> String {
    let field = |kind: u8| {
        error
            .content
            .split(|byte| *byte == 0)
            .find_map(|field| field.strip_prefix(&[kind]))
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .unwrap_or_default()
    };
    format!("{} {}", field(b'C'), field(b'M'))
}

/// What an answer says of what was done: the tag of each command, or the error.
pub fn said(messages: &[Message]) -> String {
    let words: Vec<String> = messages
        .iter()
        .filter_map(|message| match message.kind {
            b'C' => Some(message.text(0).0.to_owned()),
            b'E' => Some(describe(message)),
            _ => None,
        })
        .collect();
    words.join(", ")
}

fn row(message: &Message) -> Vec<String> {
    let mut rest = message.content.get(2..).unwrap_or_default();
    let mut values = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or_default().min(after.len());
        values.push(String::from_utf8_lossy(&after[..length]).into_owned());
        rest = &after[length..];
    }
    values
}
