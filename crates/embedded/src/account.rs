//! Who the server runs as. PostgreSQL refuses root, so root hands the server to an unprivileged account.
//!
//! Invariant: every program of the cluster is started through [`Account::command`], with an empty environment, so
//! that no secret of this process is inherited and no `PG…` variable changes what the program does.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// In order: PostgreSQL's own account where a package made one, else the one that every Unix has.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Account {
    /// This process is unprivileged already.
    Own,
    /// This process is root and runs the server as somebody else.
    Other { uid: u32, gid: u32 },
}

impl Account {
    /// The account for this process's clusters; `None` when root finds nobody to hand them to.
    pub fn for_server() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return Some(Self::Own);
        }
        let accounts = fs::read_to_string("/etc/passwd").ok()?;
        UNPRIVILEGED.iter().find_map(|name| look_up(&accounts, name))
    }

    /// A command that runs as this account, with neither this process's environment nor its groups.
    pub fn command(self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            .current_dir("/")
            .stdin(Stdio::null());
        if let Self::Other { uid, gid } = self {
            // The standard library drops root's supplementary groups when it changes the user.
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Makes this account the owner of a file or directory that this process created.
    pub fn own(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Own => Ok(()),
            Self::Other { uid, gid } => chown(path, Some(uid), Some(gid)),
        }
    }

    /// Whether the account can enter a directory. Asked of the system rather than worked out from mode bits, because
    /// access lists and mount options count too.
    pub fn can_enter(self, directory: &Path) -> io::Result<bool> {
        let status = self
            .command(Path::new("/bin/sh"))
            .args(["-c", "cd -- \"$1\"", "sh"])
            .arg(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        Ok(status.success())
    }

    /// Mode of a directory that only this process writes to, but the server passes through.
    pub fn passage_mode(self) -> u32 {
        match self {
            Self::Own => 0o700,
            Self::Other { .. } => 0o711,
        }
    }
}

/// Finds a name in the text of `/etc/passwd`.
fn look_up(accounts: &str, name: &str) -> Option<Account> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Account::Other { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::{Account, look_up};

    #[test]
    fn accounts_are_found_by_their_whole_name() {
        let check = |accounts, expected| assert_eq!(look_up(accounts, "postgres"), expected, "{accounts:?}");
        let found = Some(Account::Other { uid: 101, gid: 104 });
        check("postgres:x:101:104::/var/lib/postgresql:/bin/bash", found);
        check("root:x:0:0::/root:/bin/sh\npostgres:x:101:104:::", found);
        check("postgresql:x:101:104:::", None);
        check("postgres:x:many:104:::", None);
        check("postgres", None);
        check("", None);
    }
}
