//! What all tests of one run share: a server that the first of them starts and that ends with the run.
//!
//! cargo-nextest runs each test in a process of its own, but tells each the id of the run and is the parent of all.
//! So the processes meet in a directory named after both: whoever locks a server's file first starts it and writes
//! down where it is; the server's guard waits for the end of the run and removes everything. Under plain `cargo test`
//! the test process is the run.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process;

#[derive(Debug)]
pub(crate) struct Run {
    /// The process whose end is the end of the run.
    pub(crate) lifetime: u32,
    /// Where its tests meet. Goes with whatever server of the run ends last.
    pub(crate) directory: PathBuf,
}

impl Run {
    pub(crate) fn current() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "the test runner speaks to its tests through the environment"
        )]
        let run = env::var("NEXTEST_RUN_ID").ok();
        let (lifetime, run) = match run {
            Some(run) => (parent_id(), run),
            None => (process::id(), "alone".to_owned()),
        };
        let directory = env::temp_dir().join(format!("postrider-test-run-{run}-{lifetime}"));
        make_private(&directory).expect("the temporary directory is writable");
        Self { lifetime, directory }
    }

    /// What the first test of the run wrote down of a server. `start` starts it, detaches it, and says what to write.
    pub(crate) async fn share(&self, server: &str, start: impl AsyncFnOnce(&Self) -> String) -> String {
        let lock =
            lock(self.directory.join(format!("{server}.lock"))).await.expect("the run's lock can be taken");
        let file = self.directory.join(server);
        let written = if let Ok(written) = fs::read_to_string(&file) {
            written
        } else {
            let started = start(self).await;
            fs::write(&file, &started).expect("the run's directory is writable");
            started
        };
        drop(lock);
        written
    }
}

/// Passwords lie in it, so it is this user's alone.
fn make_private(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Waits for the lock in a thread for blocking work: the first test of a run holds it for as long as the server
/// takes to start.
async fn lock(path: PathBuf) -> io::Result<File> {
    let locking = tokio::task::spawn_blocking(move || {
        let file = File::create(path)?;
        file.lock()?;
        Ok(file)
    });
    locking.await.map_err(io::Error::other)?
}
