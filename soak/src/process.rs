//! One run of `postrider serve`, from its start to its end.
//!
//! Invariant: it is signalled by its own process id, while it is still this process's child, so that a reused id harms
//! nobody; it does not outlive this value.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
    sync::oneshot,
    task::JoinSet,
    time::timeout,
};
use uuid::Uuid;

use crate::{error::Error, shape::Role};

/// From the start until it listens; it waits for its database for three seconds.
const START_LIMIT: Duration = Duration::from_secs(30);
/// From SIGTERM to the end; it drains for 25 seconds at most.
const END_LIMIT: Duration = Duration::from_secs(40);

/// What every process of one soak has in common.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) logs: PathBuf,
    /// Further settings.
    variables: Vec<(&'static str, String)>,
    pub(crate) bootstrap_token: String,
    encryption_key: String,
    pepper: String,
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) log: PathBuf,
    child: Child,
    _reading: JoinSet<()>,
}

impl Program {
    pub(crate) fn new(path: &Path, logs: PathBuf, variables: Vec<(&'static str, String)>) -> Self {
        let secret = || format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let (bootstrap_token, encryption_key, pepper) = (secret(), secret(), secret());
        Self { path: path.to_owned(), logs, variables, bootstrap_token, encryption_key, pepper }
    }

    /// Starts a process on a free port and returns once it listens.
    pub(crate) async fn start(&self, name: String, role: Role) -> Result<Process, Error> {
        let log = self.logs.join(format!("{name}.log"));
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = file.map_err(Error::io("write", &log))?;
        let stderr = file.try_clone().map_err(Error::io("write", &log))?;
        let mut child = Command::new(&self.path)
            .args(["serve", "--role", role.as_str(), "--listen", "127.0.0.1:0"])
            // Nothing that the shell of whoever started the soak has set.
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("POSTRIDER_ENCRYPTION_KEY", &self.encryption_key)
            .env("POSTRIDER_TOKEN_PEPPER", &self.pepper)
            .env("POSTRIDER_BOOTSTRAP_TOKEN", &self.bootstrap_token)
            .env("POSTRIDER_ALLOW_LOOPBACK_ENDPOINTS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            // The interrupt key of a terminal is for the soak, which ends its processes itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::io("start", &self.path))?;
        let (listening, address) = oneshot::channel();
        let mut reading = JoinSet::new();
        if let Some(stdout) = child.stdout.take() {
            reading.spawn(keep_log(stdout, file, listening));
        }
        let said = match timeout(START_LIMIT, address).await {
            Ok(Ok(address)) => return Ok(Process { name, address, log, child, _reading: reading }),
            Ok(Err(_)) => "it ended",
            Err(_) => "it does not listen",
        };
        Err(Error::NotUp { process: name, said: said.to_owned(), log })
    }
}

/// Writes down what the process says, and passes on the address it listens on.
async fn keep_log(stdout: ChildStdout, mut log: File, listening: oneshot::Sender<SocketAddr>) {
    let mut listening = Some(listening);
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(address) = listened_on(&line)
            && let Some(listening) = listening.take()
        {
            let _ = listening.send(address);
        }
        // A log that cannot be written is missed by a person; the verdict does not rest on it.
        let _ = writeln!(log, "{line}");
    }
}

fn listened_on(line: &str) -> Option<SocketAddr> {
    let line: Value = serde_json::from_str(line).ok()?;
    line["address"].as_str()?.parse().ok()
}

impl Process {
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Error> {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let sent = id.map_or(Ok(()), |id| kill_process(id, signal));
        sent.map_err(|error| Error::io("signal", &self.name)(error.into()))
    }

    /// `Some` once it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub(crate) async fn kill(mut self) -> Result<(), Error> {
        self.signal(Signal::KILL)?;
        self.child.wait().await.map(drop).map_err(Error::io("wait for", &self.name))
    }

    /// Lets it drain and end in order.
    pub(crate) async fn terminate(mut self) -> Result<ExitStatus, Error> {
        self.signal(Signal::TERM)?;
        let ended = timeout(END_LIMIT, self.child.wait()).await;
        let ended = ended.map_err(|_| Error::NotDown { process: self.name.clone() })?;
        ended.map_err(Error::io("wait for", &self.name))
    }
}
