//! Ends a server process when this program is gone, however it went: `kill -9` runs no destructor, and a server that
//! nobody stops would go on for good.
//!
//! The guard is a shell that waits for the end of its standard input, whose other end only this program holds.
//! Invariant: it kills only a process that still runs the program it ran at first, so that a reused process id harms
//! nobody.

use std::{
    fs, io,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

/// Arguments: the process id, and the program that it runs.
const SCRIPT: &str = r#"
read -r _
case "$(readlink "/proc/$1/exe")" in "$2" | "$2 (deleted)") kill -s KILL "$1" ;; esac
"#;

/// Dropping it calls it off.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
}

impl Guard {
    pub(crate) fn over(pid: u32) -> io::Result<Self> {
        let program = fs::read_link(format!("/proc/{pid}/exe"))?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "bench-guard", &pid.to_string()]).arg(program);
        // A group of its own: the interrupt key of a terminal is not for it.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Self { shell: command.spawn()? })
    }
}

impl Drop for Guard {
    /// Killing comes first: closing the input would set it off.
    fn drop(&mut self) {
        if let Err(error) = self.shell.kill().and_then(|()| self.shell.wait().map(drop)) {
            eprintln!("a guard could not be called off: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stand_in() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn the_process_ends_when_nobody_holds_the_guard_any_more() {
        let mut process = stand_in();
        let mut guard = Guard::over(process.id()).unwrap();
        drop(guard.shell.stdin.take());
        assert!(!process.wait().unwrap().success(), "ended by a signal");
    }

    #[test]
    fn a_guard_called_off_leaves_the_process_running() {
        let mut process = stand_in();
        drop(Guard::over(process.id()).unwrap());
        assert!(process.try_wait().unwrap().is_none(), "still running");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
