//! Ends the server when the process that wanted it is gone, however it went: `kill -9` runs no destructor, and a
//! server that nobody stops would stay for good.
//!
//! The guard is a shell that waits either for the end of its standard input, whose other end only the owner holds,
//! or for the end of a process. Invariant: it signals the server only if that process still works in the data
//! directory, so that a reused process id harms nobody.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Arguments: `owner` or a process id; the server's process id; its data directory; the signal; the directories
/// to remove afterwards, if any. The wait for the server's end is bounded: 600 times a tenth of a second. Then it is
/// killed.
const SCRIPT: &str = r#"
if [ "$1" = owner ]; then cat; else while [ -d "/proc/$1" ]; do sleep 1; done; fi
serves() { [ "$(readlink "/proc/$2/cwd")" = "$3" ]; }
# A server that was frozen takes the signal when it goes on.
if serves "$@"; then kill -s "$4" "$2"; kill -s CONT "$2"; fi
left=600
while [ "$left" -gt 0 ] && serves "$@"; do sleep 0.1; left=$((left - 1)); done
if serves "$@"; then kill -s KILL "$2"; fi
shift 4
rm -rf -- "$@"
"#;

#[derive(Debug)]
pub struct Guard {
    shell: Child,
}

/// The server that is watched over.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'a> {
    pub pid: u32,
    /// Absolute, without links: it is compared with the server's working directory.
    pub data: &'a Path,
    /// Removed once the server has ended. A server whose data goes need not write them out first.
    pub remove: &'a [&'a Path],
}

impl Guard {
    /// Watches until this process ends or the guard is called off.
    pub fn for_owner(watched: Watched<'_>) -> io::Result<Self> {
        let shell = command("owner", watched).stdin(Stdio::piped()).spawn()?;
        Ok(Self { shell })
    }

    /// Leaves a guard behind that waits for the end of another process.
    pub fn for_process(pid: u32, watched: Watched<'_>) -> io::Result<()> {
        command(&pid.to_string(), watched).stdin(Stdio::null()).spawn().map(|_| ())
    }

    /// The server has ended in the ordinary way. Killing comes first: closing the input would set the guard off.
    pub fn call_off(mut self) {
        if let Err(error) = self.shell.kill().and_then(|()| self.shell.wait()) {
            tracing::debug!(%error, "the guard had ended already");
        }
    }
}

fn command(awaited: &str, watched: Watched<'_>) -> Command {
    let signal = if watched.remove.is_empty() { "INT" } else { "QUIT" };
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", SCRIPT, "postrider-guard", awaited, &watched.pid.to_string()])
        .arg(watched.data)
        .arg(signal)
        .args(watched.remove)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A group of its own: the interrupt key of a terminal is for the owner, who stops the server in its turn.
        .process_group(0)
        .current_dir("/");
    command
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Child, Command};

    use super::{Guard, Watched};

    fn stand_in(directory: &Path) -> Child {
        Command::new("sleep").arg("600").current_dir(directory).spawn().unwrap()
    }

    #[test]
    fn the_server_ends_with_its_owner() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().canonicalize().unwrap().join("data");
        std::fs::create_dir(&data).unwrap();
        let mut server = stand_in(&data);
        let watched = Watched { pid: server.id(), data: &data, remove: &[&data] };
        let mut guard = Guard::for_owner(watched).unwrap();

        drop(guard.shell.stdin.take());
        assert!(!server.wait().unwrap().success(), "ended by a signal");
        guard.shell.wait().unwrap();
        assert!(!data.exists(), "removed");
    }

    #[test]
    fn a_server_that_was_frozen_ends_too() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().canonicalize().unwrap();
        let mut server = stand_in(&data);
        let pid = rustix::process::Pid::from_child(&server);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        let mut guard = Guard::for_owner(Watched { pid: server.id(), data: &data, remove: &[] }).unwrap();

        drop(guard.shell.stdin.take());
        assert!(!server.wait().unwrap().success(), "ended by a signal");
        guard.shell.wait().unwrap();
    }

    #[test]
    fn another_process_with_that_id_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().canonicalize().unwrap();
        let mut other = stand_in(Path::new("/"));
        let mut guard = Guard::for_owner(Watched { pid: other.id(), data: &data, remove: &[] }).unwrap();

        drop(guard.shell.stdin.take());
        guard.shell.wait().unwrap();
        assert!(other.try_wait().unwrap().is_none(), "still running");
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_guard_called_off_leaves_the_server_running() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().canonicalize().unwrap();
        let mut server = stand_in(&data);
        Guard::for_owner(Watched { pid: server.id(), data: &data, remove: &[] }).unwrap().call_off();
        assert!(server.try_wait().unwrap().is_none(), "still running");
        server.kill().unwrap();
        server.wait().unwrap();
    }
}
