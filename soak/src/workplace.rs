//! The directory of a soak: the database, the logs of all processes, and in the end what failed.
//!
//! Invariant: it goes with the soak unless it is kept.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::{error::Error, report::Outcome};

/// The server's account, which may be another one, passes through to its own directory.
const PASSABLE: u32 = 0o711;
/// A server that was interrupted while it was ending writes for a moment more.
const REMOVE_TRIES: u32 = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Workplace(Option<TempDir>);

impl Workplace {
    pub(crate) fn make() -> Result<Self, Error> {
        let parent = std::env::temp_dir();
        let made = tempfile::Builder::new().prefix("postrider-soak-").tempdir_in(&parent);
        let directory = made.map_err(Error::io("make a directory in", &parent))?;
        let path = directory.path();
        fs::set_permissions(path, fs::Permissions::from_mode(PASSABLE))
            .map_err(Error::io("open up", path))?;
        let workplace = Self(Some(directory));
        let logs = workplace.logs();
        fs::create_dir(&logs).map_err(Error::io("make", logs))?;
        Ok(workplace)
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.path().join("logs")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.path().join("database")
    }

    /// Writes the ledger, and for each demand that was not met a file of what broke it.
    pub(crate) fn write_evidence(&self, outcome: &Outcome) -> Result<(), Error> {
        let write = |name: &str, text: String| {
            let path = self.path().join(name);
            fs::write(&path, text).map_err(Error::io("write", path))
        };
        write("ledger.txt", format!("{outcome}\n"))?;
        for bar in outcome.bars.iter().filter(|bar| !bar.evidence.is_empty()) {
            write(&format!("{}.txt", bar.demand.replace(' ', "-")), bar.evidence.join("\n"))?;
        }
        Ok(())
    }

    /// Leaves the directory where it is.
    pub(crate) fn keep(mut self) -> PathBuf {
        self.0.take().map_or_else(PathBuf::new, TempDir::keep)
    }

    fn path(&self) -> &Path {
        self.0.as_ref().map_or(Path::new(""), TempDir::path)
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let Some(directory) = self.0.take() else { return };
        let path = directory.keep();
        for _ in 0..REMOVE_TRIES {
            match fs::remove_dir_all(&path) {
                Ok(()) => return,
                Err(_) => thread::sleep(REMOVE_PAUSE),
            }
        }
        eprintln!("{} could not be removed", path.display());
    }
}
