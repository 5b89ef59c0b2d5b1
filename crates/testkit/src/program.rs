//! A server program of a test's own: started in a directory of its own, frozen, killed, and gone with the test.
//!
//! Invariant: the program works in its directory from its start to its end, which is how its guard knows it, and
//! nothing of it is left when the test's process ends, however that ends.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use postrider_embedded::guard::{Guard, Watched};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::TcpStream;

/// Where programs of servers lie; the path of an ordinary user leaves out some of these.
const PLACES: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/opt/homebrew/bin", "/opt/local/bin"];

/// How long between two looks at a program that starts or ends.
const POLL: Duration = Duration::from_millis(10);
/// Longest orderly end; whoever needs more is killed.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Longest start: two processors are shared by all tests.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How much of its log a failure quotes.
const QUOTED_LOG_BYTES: usize = 3000;

/// The file in its directory in which a program's output is kept.
pub(crate) const LOG: &str = "log";

#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    guard: Option<Guard>,
    log: PathBuf,
}

impl Program {
    /// Starts a program in a directory, which is also removed if this process is killed.
    pub(crate) fn start(mut command: Command, directory: &Path) -> Self {
        let log = directory.join(LOG);
        let file = File::options().create(true).append(true).mode(0o600).open(&log).expect("a log");
        command.current_dir(directory).stdout(file.try_clone().expect("a descriptor")).stderr(file);
        // A group of its own: the interrupt key of a terminal is for the test runner.
        command.process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut program = Self { child, guard: None, log };
        let watched = Watched { pid: program.child.id(), data: directory, remove: &[directory] };
        program.guard = Some(Guard::for_owner(watched).expect("a shell"));
        program
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program accepts connections at a port. An error is what it said when it ended instead.
    pub(crate) async fn listens(&mut self, port: u16) -> Result<(), String> {
        let listening = async {
            loop {
                if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                    return Err(format!("{status}: {}", self.said()));
                }
                if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok() {
                    return Ok(());
                }
                tokio::time::sleep(POLL).await;
            }
        };
        let listened = tokio::time::timeout(START_LIMIT, listening).await;
        listened.unwrap_or_else(|_| Err(format!("not within {START_LIMIT:?}: {}", self.said())))
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child can be signalled");
    }

    /// Asks it to end, and waits until it has.
    pub(crate) async fn end(mut self, signal: Signal) {
        self.send(signal);
        let ending = async {
            while self.child.try_wait().expect("a child can be asked").is_none() {
                tokio::time::sleep(POLL).await;
            }
        };
        let ended = tokio::time::timeout(END_LIMIT, ending).await;
        assert!(ended.is_ok(), "{signal:?} did not end it: {}", self.said());
    }

    /// Lets the program outlive this process: until the end of another one, with which the directories go.
    pub(crate) fn detach(mut self, until: u32, directory: &Path, companion: &Path) {
        let watched = Watched { pid: self.child.id(), data: directory, remove: &[directory, companion] };
        Guard::for_process(until, watched).expect("a shell");
        if let Some(guard) = self.guard.take() {
            guard.call_off();
        }
    }

    /// The end of its log.
    fn said(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let from = log.len().saturating_sub(QUOTED_LOG_BYTES);
        String::from_utf8_lossy(&log[from..]).into_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Without a guard it was detached.
        let Some(guard) = self.guard.take() else { return };
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("process {} could not be ended: {error}", self.child.id());
        }
        guard.call_off();
    }
}

/// Finds an installed program.
pub(crate) fn find(name: &str) -> PathBuf {
    let found = PLACES.iter().map(|place| Path::new(place).join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is missing: scripts/setup test installs it"))
}

/// An empty directory, by its name without links: it is compared with the working directory of processes.
pub(crate) fn directory(of: &str) -> (TempDir, PathBuf) {
    let made = tempfile::Builder::new().prefix(&format!("postrider-{of}-")).tempdir();
    let made = made.expect("the temporary directory is writable");
    let path = made.path().canonicalize().expect("it is there");
    (made, path)
}

/// Writes a file that may hold a password.
pub(crate) fn write_private(path: &Path, text: &str) {
    let write = || -> io::Result<()> {
        let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(path)?;
        io::Write::write_all(&mut file, text.as_bytes())
    };
    write().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Ports that nobody uses, all of them different. Another process may take one before the program does.
pub(crate) fn free_ports<const COUNT: usize>() -> [u16; COUNT] {
    let held = [(); COUNT].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
    held.map(|listener| listener.local_addr().expect("it is bound").port())
}

/// What nobody guesses, in letters and digits.
pub(crate) fn password() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
