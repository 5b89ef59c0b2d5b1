//! The gate between the simulated processes and PostgreSQL: every statement waits here until the run lets it through,
//! one at a time. So the order of all that happens in the database is the run's choice, and so is what is lost: a
//! statement before it arrives, an answer on its way back, or a connection in the middle of a transaction.
//!
//! Invariant: nothing passes by itself, save what cannot be told apart by its effects: the opening of a session and
//! the preparing of a statement.

mod client;
mod limits;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io::{self, ErrorKind},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    backend::{Backend, Server},
    label,
    time::Time,
    wire,
};
use client::Client;

const CHANNEL: &str = "postrider_pending";

/// Names a connection; numbers are never used again within a run.
pub type ClientId = u32;
/// Names a process; never used again within a run.
pub type ProcessId = u32;

/// A statement that was let through.
#[derive(Debug)]
pub enum Passed {
    /// It ran. The answer has not been delivered.
    Answered { answer: Vec<u8>, said: String },
    /// It waits for a lock.
    Waits,
}

/// A statement that waits to be let through.
#[derive(Debug, Clone)]
pub struct Request {
    pub client: ClientId,
    pub process: ProcessId,
    pub label: String,
}

#[derive(Debug)]
pub struct Gate {
    server: Server,
    base_options: String,
    directory: PathBuf,
    time: Time,
    monitor: Backend,
    idle: HashMap<String, Vec<Backend>>,
    listeners: BTreeMap<ProcessId, UnixListener>,
    clients: BTreeMap<ClientId, Client>,
    /// Clients whose statement waits for a lock, in the order in which they began to.
    waiting: Vec<ClientId>,
    next_client: ClientId,
    /// The database takes no connections.
    pub is_away: bool,
    /// Wake-ups that nobody has heard yet.
    pub wakes: VecDeque<String>,
}

impl Gate {
    /// `looks`: what [`Self::look`] will be asked to execute, by name.
    pub fn new(
        server: Server,
        base_options: &str,
        directory: &Path,
        looks: &[(&str, &str)],
    ) -> io::Result<Self> {
        let mut monitor = Backend::connect(&server, base_options)?;
        monitor.query("PREPARE blockers (int) AS SELECT cardinality(pg_blocking_pids($1)) > 0")?;
        for (name, sql) in looks {
            monitor.query(&format!("PREPARE {name} AS {sql}"))?;
        }
        Ok(Self {
            server,
            base_options: base_options.to_owned(),
            directory: directory.to_owned(),
            time: Time::default(),
            monitor,
            idle: HashMap::new(),
            listeners: BTreeMap::new(),
            clients: BTreeMap::new(),
            waiting: Vec::new(),
            next_client: 0,
            is_away: false,
            wakes: VecDeque::new(),
        })
    }

    /// Begins anew for another run; the sessions with the server stay.
    pub fn reset(&mut self, time: Time) -> io::Result<()> {
        let processes: Vec<ProcessId> = self.listeners.keys().copied().collect();
        for process in processes {
            self.close_process(process)?;
        }
        while let Some(id) = self.waiting.first().copied() {
            self.cancel(id)?;
        }
        (self.time, self.next_client, self.is_away) = (time, 0, false);
        self.wakes.clear();
        Ok(())
    }

    /// The run's own look into the database, past the gate.
    pub fn look(&mut self, sql: &str) -> io::Result<Vec<Vec<String>>> {
        self.monitor.query(sql)
    }

    /// Where a process finds its database: a directory with the socket of port 5432.
    pub fn open(&mut self, process: ProcessId) -> io::Result<PathBuf> {
        let directory = self.directory.join(process.to_string());
        std::fs::create_dir_all(&directory)?;
        let path = directory.join(".s.PGSQL.5432");
        if path.exists() {
            std::fs::remove_file(&path)?;
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        self.listeners.insert(process, listener);
        Ok(directory)
    }

    /// Takes in what a process has sent. `true`: it got an answer to something that needs no choice, and may go on.
    pub fn hear(&mut self, process: ProcessId) -> io::Result<bool> {
        let mut has_answered = false;
        for id in self.with_news(process)? {
            let Some(client) = self.clients.get_mut(&id) else { continue };
            if !client.read()? {
                self.close(id)?;
                continue;
            }
            has_answered |= client.welcome()?;
            while self.clients.get(&id).is_some_and(Client::needs_no_choice) {
                has_answered = true;
                match self.pass(id)? {
                    Passed::Answered { answer, .. } => self.deliver(id, &answer)?,
                    Passed::Waits => break,
                }
            }
        }
        Ok(has_answered)
    }

    /// The connections of a process on which something has arrived, the new ones included.
    fn with_news(&mut self, process: ProcessId) -> io::Result<Vec<ClientId>> {
        let newest = self.next_client;
        let Some(listener) = self.listeners.get(&process) else { return Ok(Vec::new()) };
        let clients = self.clients.iter().filter(|(_, client)| client.process == process);
        let streams: Vec<(ClientId, &UnixStream)> =
            clients.filter_map(|(id, client)| Some((*id, client.stream()?))).collect();
        let mut looked_at = vec![PollFd::new(listener, PollFlags::IN)];
        looked_at.extend(streams.iter().map(|(_, stream)| PollFd::new(*stream, PollFlags::IN)));
        poll(&mut looked_at, Some(&Timespec::default()))?;
        let mut news = looked_at.iter().map(|looked_at| !looked_at.revents().is_empty());
        let is_called = news.next().unwrap_or_default();
        let mut ids: Vec<ClientId> =
            streams.iter().zip(news).filter(|(_, has_news)| *has_news).map(|((id, _), _)| *id).collect();
        if is_called {
            self.accept(process)?;
            ids.extend(newest..self.next_client);
        }
        Ok(ids)
    }

    /// The statements that wait to be let through, in the order of their connections.
    pub fn requests(&self) -> Vec<Request> {
        self.clients
            .iter()
            .filter(|(_, client)| client.is_asking() && !self.has_line_before(&client.label()))
            .map(|(id, client)| Request { client: *id, process: client.process, label: client.label() })
            .collect()
    }

    /// Whether somebody waits for a row that this statement would wait for too. Of two who wait for one that has changed
    /// the server lets through whoever is quicker, so the second one waits here.
    fn has_line_before(&self, label: &str) -> bool {
        let Some(row) = label::awaited_row(label) else { return false };
        let mut waiting = self.waiting.iter().filter_map(|id| self.clients.get(id));
        waiting.any(|client| label::awaited_row(&client.waits_in) == Some(row))
    }

    /// The connections of a process.
    pub fn of_process(&self, process: ProcessId) -> Vec<ClientId> {
        let clients = self.clients.iter().filter(|(_, client)| client.process == process && client.is_open());
        clients.map(|(id, _)| *id).collect()
    }

    /// Lets a connection's next statement through.
    pub fn pass(&mut self, id: ClientId) -> io::Result<Passed> {
        let client = self.clients.get_mut(&id).ok_or(ErrorKind::NotFound)?;
        let Some(group) = client.requests.pop_front() else { return Err(ErrorKind::NotFound.into()) };
        if group.label == label::LISTEN {
            client.is_listening = true;
            return Ok(Passed::Answered { answer: wire::done("LISTEN"), said: "LISTEN".to_owned() });
        }
        if group.label == label::NOTIFY {
            self.wakes.extend(group.said_aloud());
        }
        if client.backend.is_none() {
            let options = format!("{} {}", self.base_options, client.options);
            let pooled = self.idle.get_mut(&client.options).and_then(Vec::pop);
            client.backend = Some(match pooled {
                Some(backend) => backend,
                None => Backend::connect(&self.server, &options)?,
            });
        }
        client.send(&group, &self.time)?;
        client.waits_in = group.label;
        client.asked_at = self.time.elapsed();
        self.await_answer(id)
    }

    /// Waits for the answer, unless the server waits for a lock.
    fn await_answer(&mut self, id: ClientId) -> io::Result<Passed> {
        let client = self.clients.get_mut(&id).ok_or(ErrorKind::NotFound)?;
        let backend = client.backend.as_mut().ok_or(ErrorKind::NotFound)?;
        loop {
            if let Some(messages) = backend.try_wait()? {
                let (answer, said) = client.answer(&messages);
                client.spoke_at = self.time.elapsed();
                self.waiting.retain(|waiting| *waiting != id);
                self.give_back(id);
                return Ok(Passed::Answered { answer, said });
            }
            if is_blocked(&mut self.monitor, backend.pid)? {
                if !self.waiting.contains(&id) {
                    self.waiting.push(id);
                    client.is_waiting = true;
                }
                return Ok(Passed::Waits);
            }
        }
    }

    /// Between two transactions a connection needs no session: the fewer there are, the fewer plan each statement.
    fn give_back(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if let Some(backend) = client.backend.take_if(|backend| backend.status == b'I') {
            self.idle.entry(client.options.clone()).or_default().push(backend);
        }
    }

    /// Delivers an answer; a process that is gone hears nothing.
    pub fn deliver(&mut self, id: ClientId, answer: &[u8]) -> io::Result<()> {
        match self.clients.get_mut(&id) {
            Some(client) => client.write(answer),
            None => Ok(()),
        }
    }

    /// Looks whether statements that waited for a lock have got it, and delivers their answers.
    pub fn look_at_waiting(&mut self) -> io::Result<Vec<(ProcessId, ClientId, String)>> {
        let mut passed = Vec::new();
        for id in self.waiting.clone() {
            let backend = self.clients.get(&id).and_then(|client| client.backend.as_ref());
            // Whoever ends a transaction takes those it held up off the list: asking is quicker than to wait and see.
            if let Some(pid) = backend.map(|backend| backend.pid)
                && is_blocked(&mut self.monitor, pid)?
            {
                continue;
            }
            if let Passed::Answered { answer, said } = self.await_answer(id)? {
                passed.extend(self.conclude_wait(id, &answer, said)?);
            }
        }
        Ok(passed)
    }

    fn conclude_wait(
        &mut self,
        id: ClientId,
        answer: &[u8],
        said: String,
    ) -> io::Result<Option<(ProcessId, ClientId, String)>> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(None) };
        client.is_waiting = false;
        let process = client.process;
        if client.is_open() {
            client.write(answer)?;
        } else {
            self.close(id)?;
        }
        Ok(Some((process, id, said)))
    }

    /// Ends waits and transactions that have lasted too long; call it when time has passed.
    pub fn pass_time(&mut self) -> io::Result<Vec<(ProcessId, ClientId, String)>> {
        let now = self.time.elapsed();
        let mut ended = Vec::new();
        for id in self.waiting.clone() {
            let client = self.clients.get(&id);
            if client.is_some_and(|client| now.saturating_sub(client.asked_at) >= client.lock_timeout()) {
                ended.extend(self.cancel(id)?);
            }
        }
        let idle = self.clients.iter().filter(|(_, client)| {
            client.is_in_transaction() && now.saturating_sub(client.spoke_at) >= client.pause_timeout()
        });
        for id in idle.map(|(id, _)| *id).collect::<Vec<_>>() {
            let process = self.clients.get(&id).map_or(0, |client| client.process);
            self.close(id)?;
            ended.push((process, id, "idle in transaction for too long".to_owned()));
        }
        Ok(ended)
    }

    /// Ends a wait for a lock as the lane's time limit does.
    pub fn cancel(&mut self, id: ClientId) -> io::Result<Option<(ProcessId, ClientId, String)>> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(None) };
        let Some(backend) = client.backend.as_mut() else { return Ok(None) };
        let cancel = format!("SELECT pg_cancel_backend({})", backend.pid);
        self.monitor.query(&cancel)?;
        let messages = backend.wait()?;
        let (answer, said) = client.answer(&messages);
        client.spoke_at = self.time.elapsed();
        self.waiting.retain(|waiting| *waiting != id);
        self.give_back(id);
        self.conclude_wait(id, &answer, said)
    }

    /// Sends one wake-up to those who listen.
    pub fn wake(&mut self) -> io::Result<Vec<ProcessId>> {
        let Some(call) = self.wakes.pop_front() else { return Ok(Vec::new()) };
        let mut woken = Vec::new();
        for client in self.clients.values_mut().filter(|client| client.is_listening && client.is_open()) {
            client.write(&wire::notification(CHANNEL, &call))?;
            woken.push(client.process);
        }
        Ok(woken)
    }

    /// Cuts a connection. What the server was asked to do it finishes; a transaction is rolled back.
    pub fn close(&mut self, id: ClientId) -> io::Result<()> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        client.hang_up();
        if client.is_waiting {
            return Ok(());
        }
        if let Some(mut client) = self.clients.remove(&id)
            && let Some(mut backend) = client.backend.take()
        {
            if backend.status != b'I' {
                backend.query("ROLLBACK")?;
            }
            self.idle.entry(client.options).or_default().push(backend);
        }
        Ok(())
    }

    /// Cuts all connections of a process that has ended.
    pub fn close_process(&mut self, process: ProcessId) -> io::Result<()> {
        self.listeners.remove(&process);
        for id in self.of_process(process) {
            self.close(id)?;
        }
        Ok(())
    }

    fn accept(&mut self, process: ProcessId) -> io::Result<()> {
        while let Some(listener) = self.listeners.get(&process) {
            match listener.accept() {
                Ok((stream, _)) if self.is_away => drop(stream),
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    self.clients.insert(self.next_client, Client::new(process, stream));
                    self.next_client += 1;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether a session waits for a lock.
fn is_blocked(monitor: &mut Backend, pid: i32) -> io::Result<bool> {
    let blockers = format!("EXECUTE blockers({pid})");
    Ok(monitor.query(&blockers)? == [["t"]])
}
