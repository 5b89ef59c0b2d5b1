//! One connection of a simulated process, as the gate sees it.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use super::{ProcessId, said};
use crate::{
    backend::Backend,
    label,
    time::Time,
    wire::{self, Message},
};

/// Time limits that the gate keeps by simulated time; the server knows none of them.
const LIMITS: [&str; 3] = ["lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"];
/// Longest wait for a lock of sessions that set none when they begin.
const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages that the server answers at once.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) messages: Vec<Message>,
    pub(super) label: String,
}

impl Group {
    /// Whether a statement runs: more than preparing one.
    pub(super) fn is_execution(&self) -> bool {
        self.messages.iter().any(|message| matches!(message.kind, b'Q' | b'E'))
    }
}

#[derive(Debug)]
struct Statement {
    /// With the types of its parameters, as it was sent.
    content: Vec<u8>,
    label: String,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) process: ProcessId,
    /// `None` once the process is gone.
    stream: Option<UnixStream>,
    buffer: Vec<u8>,
    has_started: bool,
    /// What the session was opened with, without the time limits.
    pub(super) options: String,
    pub(super) lock_timeout: Duration,
    group: Vec<Message>,
    pub(super) requests: VecDeque<Group>,
    pub(super) backend: Option<Backend>,
    /// The client's names of prepared statements: the statement, its parameters' types included.
    statements: HashMap<String, Statement>,
    /// Statements sent along with what is being answered.
    preparing: Vec<Vec<u8>>,
    /// Answers to messages that were not passed on.
    own_answers: Vec<Message>,
    pub(super) is_listening: bool,
    pub(super) is_waiting: bool,
    pub(super) asked_at: Duration,
    pub(super) spoke_at: Duration,
}

impl Client {
    pub(super) fn new(process: ProcessId, stream: UnixStream) -> Self {
        Self {
            process,
            stream: Some(stream),
            buffer: Vec::new(),
            has_started: false,
            options: String::new(),
            lock_timeout: DEFAULT_LOCK_TIMEOUT,
            group: Vec::new(),
            requests: VecDeque::new(),
            backend: None,
            statements: HashMap::new(),
            preparing: Vec::new(),
            own_answers: Vec::new(),
            is_listening: false,
            is_waiting: false,
            asked_at: Duration::ZERO,
            spoke_at: Duration::ZERO,
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    pub(super) fn is_asking(&self) -> bool {
        self.is_open() && !self.is_waiting && !self.requests.is_empty()
    }

    pub(super) fn is_in_transaction(&self) -> bool {
        !self.is_waiting && self.backend.as_ref().is_some_and(|backend| backend.status != b'I')
    }

    pub(super) fn hang_up(&mut self) {
        self.stream = None;
        self.requests.clear();
    }

    /// Reads what there is. `false`: the process has closed the connection.
    pub(super) fn read(&mut self) -> io::Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(true) };
        let mut chunk = [0; 4 * 1024];
        loop {
            match stream.read(&mut chunk) {
                Ok(0) => return Ok(false),
                Ok(count) => self.buffer.extend(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if self.has_started {
            self.gather();
        }
        Ok(true)
    }

    /// Lets a new session in. `true` if it was one.
    pub(super) fn welcome(&mut self) -> io::Result<bool> {
        if self.has_started {
            return Ok(false);
        }
        let Some(parameters) = wire::split_startup(&mut self.buffer) else { return Ok(false) };
        self.has_started = true;
        let options = parameters.iter().find(|(name, _)| name == "options").map(|(_, value)| value.as_str());
        let mut kept = Vec::new();
        for option in options.unwrap_or_default().split("-c ").map(str::trim).filter(|text| !text.is_empty())
        {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if name == "lock_timeout" {
                self.lock_timeout = Duration::from_millis(value.parse().unwrap_or_default());
            }
            if !LIMITS.contains(&name) {
                kept.push(format!("-c {option}"));
            }
        }
        self.options = kept.join(" ");
        self.write(&wire::welcome())?;
        self.gather();
        Ok(true)
    }

    /// Whether the next request changes nothing and depends on nothing: preparing a statement, or listening.
    pub(super) fn needs_no_choice(&self) -> bool {
        let next = self.requests.front().filter(|_| self.is_asking());
        next.is_some_and(|group| !group.is_execution() || group.label == label::LISTEN)
    }

    pub(super) fn label(&self) -> String {
        self.requests.front().map(|group| group.label.clone()).unwrap_or_default()
    }

    fn label_of(&self, messages: &[Message]) -> String {
        let label = messages.iter().find_map(|message| match message.kind {
            b'Q' => Some(label::of(message.text(0).0)),
            b'P' => Some(self.statements.get(message.text(0).0)?.label.clone()),
            b'B' => {
                let (portal, _) = message.text(0);
                let (name, _) = message.text(portal.len() + 1);
                Some(self.statements.get(name)?.label.clone())
            }
            _ => None,
        });
        label.unwrap_or_default()
    }

    /// Sends a group on, after the time of a new transaction.
    pub(super) fn send(&mut self, group: &Group, time: &Time) -> io::Result<()> {
        let Some(mut backend) = self.backend.take() else { return Err(ErrorKind::NotConnected.into()) };
        let mut messages = Vec::with_capacity(group.messages.len() + 1);
        if backend.status == b'I' && group.is_execution() {
            // No two transactions begin at the same moment, so that no order depends on what is equal.
            time.advance(Duration::from_micros(1));
            let now = time.now();
            let (date, clock) = (now.date(), now.time());
            let micros = clock.microsecond();
            let (hour, minute, second) = clock.as_hms();
            let told = format!("{date} {hour:02}:{minute:02}:{second:02}.{micros:06}+00");
            messages.push(Message::query(&format!("SET simulated.now = '{told}'")));
        }
        let has_time = !messages.is_empty();
        for message in &group.messages {
            messages.extend(self.translate(message, &mut backend));
        }
        let sent = backend.send(&messages);
        self.backend = Some(backend);
        sent?;
        if has_time && let Some(backend) = &mut self.backend {
            backend.wait()?;
        }
        Ok(())
    }

    /// What the process gets, and what is said of it in the trace.
    pub(super) fn answer(&mut self, messages: &[Message]) -> (Vec<u8>, String) {
        let said = said(messages);
        let has_failed = messages.iter().any(|message| message.kind == b'E');
        let prepared = std::mem::take(&mut self.preparing);
        if has_failed && let Some(backend) = &mut self.backend {
            for statement in prepared {
                backend.forget_statement(&statement);
            }
        }
        let mut bytes = Vec::new();
        for message in std::mem::take(&mut self.own_answers).iter().chain(messages) {
            message.write_to(&mut bytes);
        }
        (bytes, said)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        match stream.write_all(bytes) {
            // The process has just given the connection up.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Ok(())
            }
            written => written,
        }
    }

    /// Cuts what has arrived into groups that the server answers at once.
    fn gather(&mut self) {
        for message in wire::split(&mut self.buffer) {
            let ends = message.ends_group();
            if message.kind == b'P' {
                let (name, statement) = message.text(0);
                let label = label::of(message.text(name.len() + 1).0);
                self.statements.insert(name.to_owned(), Statement { content: statement.to_vec(), label });
            }
            self.group.push(message);
            if ends {
                let messages = std::mem::take(&mut self.group);
                let label = self.label_of(&messages);
                self.requests.push_back(Group { messages, label });
            }
        }
    }

    /// Exchanges the client's name of a statement for the server's; a statement the server knows is not sent again.
    fn translate(&mut self, message: &Message, backend: &mut Backend) -> Option<Message> {
        match message.kind {
            b'P' => {
                let (name, statement) = message.text(0);
                if name.is_empty() {
                    return Some(message.clone());
                }
                let (server_name, is_new) = backend.statement(statement);
                if is_new {
                    self.preparing.push(statement.to_vec());
                    let content = [server_name.as_bytes(), &[0], statement].concat();
                    return Some(Message::new(b'P', content));
                }
                self.own_answers.push(Message::new(b'1', []));
                None
            }
            b'B' => {
                let (portal, after) = message.text(0);
                let (name, rest) = message.text(portal.len() + 1);
                debug_assert!(after.ends_with(rest));
                let name = self.server_name(name, backend);
                let content = [portal.as_bytes(), &[0], name.as_bytes(), &[0], rest].concat();
                Some(Message::new(b'B', content))
            }
            b'D' if message.content.first() == Some(&b'S') => {
                let name = self.server_name(message.text(1).0, backend);
                Some(Message::new(b'D', [b"S", name.as_bytes(), &[0]].concat()))
            }
            b'C' if message.content.first() == Some(&b'S') => {
                self.own_answers.push(Message::new(b'3', []));
                None
            }
            _ => Some(message.clone()),
        }
    }

    fn server_name(&self, name: &str, backend: &mut Backend) -> String {
        match self.statements.get(name) {
            Some(statement) if !name.is_empty() => backend.statement(&statement.content).0,
            Some(_) | None => name.to_owned(),
        }
    }
}
