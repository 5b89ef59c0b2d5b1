//! The server process: its pid file, its start and its end.
//!
//! Invariant: a process named by a pid file counts as the server only if it works in that data directory. The file
//! outlives a `kill -9`, and its process id may belong to anybody by now.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long between two looks at a process that starts or ends: nothing tells when a process that is not a child
/// ends, nor when the server has written its pid file.
const POLL: Duration = Duration::from_millis(10);

/// How long a fast shutdown may take: it writes a checkpoint.
pub(crate) const FAST_LIMIT: Duration = Duration::from_secs(60);

/// How long the server may take to end at once. After five seconds it kills its own children.
pub(crate) const IMMEDIATE_LIMIT: Duration = Duration::from_secs(15);

/// What `postmaster.pid` says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PidFile {
    pub(crate) pid: u32,
    pub(crate) ready: bool,
}

impl PidFile {
    /// Reads the file in a data directory; `None` if there is none or it is not written out yet.
    pub(crate) fn read(data: &Path) -> io::Result<Option<Self>> {
        match fs::read_to_string(data.join("postmaster.pid")) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first line is the process id (negative for a single-user server), the eighth the state.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let pid: i32 = lines.next()?.trim().parse().ok()?;
        let ready = lines.nth(6).is_some_and(|state| state.trim() == "ready");
        Some(Self { pid: pid.unsigned_abs(), ready })
    }
}

/// Whether a process works in a data directory, as the server does from its start to its end. A process that ended
/// but was not reaped works nowhere.
pub(crate) fn serves(pid: u32, data: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|directory| directory == data)
}

/// Ends a server that an earlier run left behind, and removes the pid file of one that was killed. The caller holds
/// the lock on the directory, so no living owner has it.
pub(crate) async fn end_orphan(data: &Path) -> io::Result<Orphan> {
    let Some(file) = PidFile::read(data)? else { return Ok(Orphan::None) };
    if !serves(file.pid, data) {
        // The server trusts any living process with that id to be itself, and would refuse to start.
        tracing::debug!(pid = file.pid, "removing the pid file of a server that was killed");
        fs::remove_file(data.join("postmaster.pid"))?;
        return Ok(Orphan::None);
    }
    tracing::info!(pid = file.pid, "ending the database server that an earlier run left behind");
    for (signal, limit) in [(Signal::INT, FAST_LIMIT), (Signal::QUIT, IMMEDIATE_LIMIT)] {
        send(file.pid, signal)?;
        if within(limit, async || Ok((!serves(file.pid, data)).then_some(()))).await?.is_some() {
            return Ok(Orphan::Ended);
        }
    }
    Ok(Orphan::Stays(file.pid))
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Orphan {
    None,
    Ended,
    /// It ignored even the immediate shutdown.
    Stays(u32),
}

/// Waits until a starting server accepts connections. `Ok(false)`: it ended instead, or the time was up.
pub(crate) async fn becomes_ready(child: &mut Child, data: &Path, limit: Duration) -> io::Result<bool> {
    let pid = child.id();
    let state = within(limit, async || {
        if child.try_wait()?.is_some() {
            return Ok(Some(false));
        }
        let ready = PidFile::read(data)?.is_some_and(|file| file.pid == pid && file.ready);
        Ok(ready.then_some(true))
    });
    Ok(state.await?.unwrap_or(false))
}

/// Asks a child to end and waits for it. `Ok(false)`: the time was up.
pub(crate) async fn end(child: &mut Child, signal: Signal, limit: Duration) -> io::Result<bool> {
    if child.try_wait()?.is_some() {
        return Ok(true);
    }
    send(child.id(), signal)?;
    Ok(within(limit, async || Ok(child.try_wait()?.map(|_| ()))).await?.is_some())
}

/// Ends a child without a runtime to wait in, for destructors: at once, and by force when that takes too long.
pub(crate) fn end_now(child: &mut Child) -> io::Result<()> {
    if child.try_wait()?.is_some() {
        return Ok(());
    }
    send(child.id(), Signal::QUIT)?;
    for _ in 0..IMMEDIATE_LIMIT.as_millis() / POLL.as_millis() {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
    child.kill()?;
    child.wait().map(|_| ())
}

/// Opens the server's log for appending. One that has grown large starts anew.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    const LARGE_BYTES: u64 = 16 * 1024 * 1024;
    let log = File::options().create(true).append(true).mode(0o600).open(path)?;
    if log.metadata()?.len() > LARGE_BYTES {
        log.set_len(0)?;
    }
    Ok(log)
}

fn send(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    match kill_process(pid, signal) {
        // It ended by itself in the meantime, which is what was asked for.
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Looks again and again until there is something to see; `None` when the time is up.
async fn within<T>(
    limit: Duration,
    mut look: impl AsyncFnMut() -> io::Result<Option<T>>,
) -> io::Result<Option<T>> {
    let looking = async {
        loop {
            if let Some(seen) = look().await? {
                return Ok(Some(seen));
            }
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(limit, looking).await.unwrap_or(Ok(None))
}

#[cfg(test)]
mod tests {
    use super::{Orphan, PidFile, end_orphan, serves};
    use std::process::Command;

    #[test]
    fn pid_files_are_read() {
        let check = |text: &str, expected: Option<(u32, bool)>| {
            let expected = expected.map(|(pid, ready)| PidFile { pid, ready });
            assert_eq!(PidFile::parse(text), expected, "{text:?}");
        };
        let file = |state| format!("17\n/data\n1700000000\n5432\n\n127.0.0.1\n  1234 0\n{state}\n");
        check(&file("ready   "), Some((17, true)));
        check(&file("starting"), Some((17, false)));
        check("17\n/data\n1700000000\n5432\n\n127.0.0.1\n", Some((17, false)));
        check("-17\n/data\n", Some((17, false)));
        check("", None);
        check("x\n", None);
    }

    #[tokio::test]
    async fn a_pid_file_that_names_another_process_is_removed_and_the_process_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().canonicalize().unwrap();
        let mut other = Command::new("sleep").arg("600").current_dir("/").spawn().unwrap();
        std::fs::write(data.join("postmaster.pid"), format!("{}\n", other.id())).unwrap();

        assert_eq!(end_orphan(&data).await.unwrap(), Orphan::None);
        assert!(!data.join("postmaster.pid").exists());
        assert!(other.try_wait().unwrap().is_none(), "still running");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_process_serves_the_directory_it_works_in() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().canonicalize().unwrap();
        let mut server = Command::new("sleep").arg("600").current_dir(&data).spawn().unwrap();
        assert!(serves(server.id(), &data));
        assert!(!serves(server.id(), data.parent().unwrap()));
        server.kill().unwrap();
        server.wait().unwrap();
        assert!(!serves(server.id(), &data));
    }
}
