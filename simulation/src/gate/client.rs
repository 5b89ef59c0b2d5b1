//! One connection of a simulated process, as the gate sees it.

use std::{
    collections::{HashMap, VecDeque},
    io::{self, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use super::{ProcessId, limits::Limits};
use crate::{
    backend::{Backend, said},
    label,
    time::Time,
    wire::{self, Message},
};

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

    /// What each `NOTIFY` tells; they are sent as text with everything in it.
    pub(super) fn said_aloud(&self) -> Vec<String> {
        let queries = self.messages.iter().filter(|message| message.kind == b'Q');
        queries.flat_map(|query| query.text(0).0.split('\'').skip(1).step_by(2)).map(str::to_owned).collect()
    }
}

#[derive(Debug)]
struct Statement {
    /// With the types of its parameters, as it was sent.
    content: Vec<u8>,
    label: String,
}

/// Answers to come that the process did not ask for.
#[derive(Debug, Default)]
struct Unasked {
    /// The first is to what told the session the time.
    tells_time: bool,
    /// Statements that were prepared once more.
    prepared: usize,
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
    /// Since the session began, and what its transaction sets for itself.
    limits: Limits,
    local_limits: Limits,
    group: Vec<Message>,
    pub(super) requests: VecDeque<Group>,
    pub(super) backend: Option<Backend>,
    /// The client's names of prepared statements: the statement, its parameters' types included.
    statements: HashMap<String, Statement>,
    /// Statements sent along with what is being answered.
    preparing: Vec<Vec<u8>>,
    /// Answers to messages that were not passed on.
    own_answers: Vec<Message>,
    unasked: Unasked,
    pub(super) is_listening: bool,
    pub(super) is_waiting: bool,
    /// The label of the statement that was let through last.
    pub(super) waits_in: String,
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
            limits: Limits::default(),
            local_limits: Limits::default(),
            group: Vec::new(),
            requests: VecDeque::new(),
            backend: None,
            statements: HashMap::new(),
            preparing: Vec::new(),
            own_answers: Vec::new(),
            unasked: Unasked::default(),
            is_listening: false,
            is_waiting: false,
            waits_in: String::new(),
            asked_at: Duration::ZERO,
            spoke_at: Duration::ZERO,
        }
    }

    /// Where its messages arrive; `None` once the process is gone.
    pub(super) const fn stream(&self) -> Option<&UnixStream> {
        self.stream.as_ref()
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

    pub(super) fn lock_timeout(&self) -> Duration {
        self.local_limits.lock_over(self.limits)
    }

    pub(super) fn pause_timeout(&self) -> Duration {
        self.local_limits.pause_over(self.limits)
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
            self.gather()?;
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
            if !self.limits.set(name, value) {
                kept.push(format!("-c {option}"));
            }
        }
        self.options = kept.join(" ");
        self.write(&wire::welcome())?;
        self.gather()?;
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

    fn label_of(&self, messages: &[Message]) -> io::Result<String> {
        let known = |name| Some(Ok(self.statements.get(name)?.label.clone()));
        let label = messages.iter().find_map(|message| match message.kind {
            b'Q' => Some(label::of(message.text(0).0)),
            b'P' => known(message.text(0).0),
            b'B' => {
                let (portal, _) = message.text(0);
                known(message.text(portal.len() + 1).0)
            }
            _ => None,
        });
        match (label, messages) {
            (Some(label), _) => label,
            (None, [sync]) if sync.kind == b'S' => Ok(label::PING.to_owned()),
            (None, _) => {
                Err(io::Error::other(format!("no name for a request without a statement: {messages:?}")))
            }
        }
    }

    /// Sends a group on, after the time of a new transaction.
    pub(super) fn send(&mut self, group: &Group, time: &Time) -> io::Result<()> {
        let Some(mut backend) = self.backend.take() else { return Err(ErrorKind::NotConnected.into()) };
        let mut messages = Vec::with_capacity(group.messages.len() + 3);
        let begins = backend.status == b'I' && group.is_execution();
        if begins {
            // No two transactions begin at the same moment, so that no order depends on what is equal.
            time.advance(Duration::from_micros(1));
            let now = time.now();
            let (date, clock) = (now.date(), now.time());
            let micros = clock.microsecond();
            let (hour, minute, second) = clock.as_hms();
            let told = format!("{date} {hour:02}:{minute:02}:{second:02}.{micros:06}+00");
            self.unasked.tells_time = true;
            self.local_limits = Limits::default();
            if let [query] = group.messages.as_slice()
                && query.kind == b'Q'
            {
                let (limits, sql) = Limits::take_out_of(query.text(0).0);
                self.local_limits = limits;
                messages.push(Message::query(&format!("SET simulated.now = '{told}'; {sql}")));
            } else {
                messages.extend(backend.time_messages(&told));
            }
        }
        if messages.first().is_none_or(|first| first.kind != b'Q') {
            for message in &group.messages {
                self.translate(message, &mut backend, &mut messages);
            }
        }
        let sent = backend.send(&messages);
        self.backend = Some(backend);
        sent
    }

    /// What the process gets, and what is said of it in the trace.
    pub(super) fn answer(&mut self, messages: &[Message]) -> (Vec<u8>, String) {
        let messages =
            if std::mem::take(&mut self.unasked.tells_time) { after_time(messages) } else { messages };
        let said = said(messages);
        let has_failed = messages.iter().any(|message| message.kind == b'E');
        let prepared = std::mem::take(&mut self.preparing);
        if has_failed && let Some(backend) = &mut self.backend {
            for statement in prepared {
                backend.forget_statement(&statement);
            }
        }
        let mut bytes = Vec::new();
        let mut unasked = std::mem::take(&mut self.unasked.prepared);
        for message in std::mem::take(&mut self.own_answers).iter().chain(messages) {
            if unasked > 0 && message.kind == b'1' {
                unasked -= 1;
            } else {
                message.write_to(&mut bytes);
            }
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
    fn gather(&mut self) -> io::Result<()> {
        for message in wire::split(&mut self.buffer) {
            let ends = message.ends_group();
            if message.kind == b'P' {
                let (name, statement) = message.text(0);
                let label = label::of(message.text(name.len() + 1).0)?;
                self.statements.insert(name.to_owned(), Statement { content: statement.to_vec(), label });
            }
            self.group.push(message);
            if ends {
                let messages = std::mem::take(&mut self.group);
                let label = self.label_of(&messages)?;
                self.requests.push_back(Group { messages, label });
            }
        }
        Ok(())
    }

    /// Exchanges the client's name of a statement for the server's; a statement the server knows is not sent again.
    fn translate(&mut self, message: &Message, backend: &mut Backend, to: &mut Vec<Message>) {
        match message.kind {
            b'P' => {
                let (_, statement) = message.text(0);
                let (_, parse) = self.known_to(backend, statement);
                match parse {
                    Some(parse) => to.push(parse),
                    None => self.own_answers.push(Message::new(b'1', [])),
                }
            }
            b'B' => {
                let (portal, after) = message.text(0);
                let (name, rest) = message.text(portal.len() + 1);
                debug_assert!(after.ends_with(rest));
                let name = self.server_name(name, backend, to);
                let content = [portal.as_bytes(), &[0], name.as_bytes(), &[0], rest].concat();
                to.push(Message::new(b'B', content));
            }
            b'D' if message.content.first() == Some(&b'S') => {
                let name = self.server_name(message.text(1).0, backend, to);
                to.push(Message::new(b'D', [b"S", name.as_bytes(), &[0]].concat()));
            }
            b'C' if message.content.first() == Some(&b'S') => {
                self.own_answers.push(Message::new(b'3', []));
            }
            _ => to.push(message.clone()),
        }
    }

    /// The session may be another one than the one in which the statement was prepared: then it is prepared once more.
    fn server_name(&mut self, name: &str, backend: &mut Backend, to: &mut Vec<Message>) -> String {
        let Some(statement) = self.statements.get(name) else { return name.to_owned() };
        let content = statement.content.clone();
        let (server_name, parse) = self.known_to(backend, &content);
        if let Some(parse) = parse {
            self.unasked.prepared += 1;
            to.push(parse);
        }
        server_name
    }

    /// The session's name of a statement, and what makes the statement known to it.
    fn known_to(&mut self, backend: &mut Backend, statement: &[u8]) -> (String, Option<Message>) {
        let (name, is_new) = backend.statement(statement);
        if !is_new {
            return (name, None);
        }
        self.preparing.push(statement.to_vec());
        let parse = Message::new(b'P', [name.as_bytes(), &[0], statement].concat());
        (name, Some(parse))
    }
}

/// The answer without what was said of the time.
fn after_time(messages: &[Message]) -> &[Message] {
    match messages.iter().position(|message| matches!(message.kind, b'C' | b'E')) {
        Some(end) if messages[end].kind == b'C' => &messages[end + 1..],
        Some(_) | None => messages,
    }
}
