//! A running `postrider`, and what it says.

use std::{io::Read, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::mpsc::{self, UnboundedReceiver},
    task::JoinSet,
};

/// Variables that the developer's shell may have set and that no test may see.
pub(crate) const FOREIGN_VARIABLES: [&str; 4] =
    ["DATABASE_URL", "POSTRIDER_LISTEN", "POSTRIDER_LOG", "POSTRIDER_CA_FILE"];

/// A process that is killed when dropped.
pub(crate) struct Program {
    child: Child,
    /// Read as they come: a program that nobody listens to would stand still once the pipe is full.
    lines: UnboundedReceiver<String>,
    _reading: JoinSet<()>,
    said: Vec<String>,
    stderr: std::fs::File,
}

/// A process that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Program {
    pub(crate) fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let stderr = tempfile::tempfile().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
        for name in FOREIGN_VARIABLES {
            command.env_remove(name);
        }
        let mut child = command
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, lines) = mpsc::unbounded_channel();
        let mut reading = JoinSet::new();
        reading.spawn(async move {
            while let Some(line) = stdout.next_line().await.unwrap() {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, _reading: reading, said: Vec::new(), stderr }
    }

    /// Waits for a line of the standard output; panics with everything that was said if it never comes.
    pub(crate) async fn line(&mut self, matches: impl Fn(&str) -> bool) -> String {
        loop {
            let Some(line) = self.lines.recv().await else {
                let errors = self.errors();
                panic!("the program ended and said only {:#?}\nand {errors}", self.said);
            };
            self.said.push(line.clone());
            if matches(&line) {
                return line;
            }
        }
    }

    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Waits for the end.
    pub(crate) async fn ended(mut self) -> Ended {
        while let Some(line) = self.lines.recv().await {
            self.said.push(line);
        }
        let status = self.child.wait().await.unwrap();
        Ended { code: status.code(), stdout: self.said.join("\n"), stderr: self.errors() }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.id()).unwrap(), signal).unwrap();
    }

    /// Whether a signal made it stand still.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        // The state follows the name, which may itself hold anything.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    fn id(&self) -> i32 {
        i32::try_from(self.child.id().expect("the program runs")).unwrap()
    }

    fn errors(&mut self) -> String {
        use std::io::Seek;
        let mut text = String::new();
        self.stderr.rewind().unwrap();
        self.stderr.read_to_string(&mut text).unwrap();
        text
    }
}

/// Runs to the end.
pub(crate) async fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Ended {
    Program::start(arguments, variables).ended().await
}
