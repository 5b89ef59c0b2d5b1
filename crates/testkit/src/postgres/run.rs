//! The server that all tests of one run share.
//!
//! cargo-nextest runs each test in a process of its own, but tells each the id of the run and is the parent of all.
//! So the processes meet in a directory named after both: whoever locks it first starts the server and writes down
//! where it is; the server's guard waits for the end of the run and removes everything. Under plain `cargo test` the
//! test process is the run.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process;

use postrider_embedded::{Durability, Place};
use tokio::sync::OnceCell;

static SERVER: OnceCell<Server> = OnceCell::const_new();

/// Stands for the name of the database in the written URL; no other part of a URL looks like it.
const DATABASE: &str = "DATABASE-NAME";

#[derive(Debug)]
pub(super) struct Server {
    url: String,
}

impl Server {
    pub(super) fn url(&self, database: &str) -> String {
        self.url.replace(DATABASE, database)
    }
}

pub(super) async fn server() -> &'static Server {
    SERVER.get_or_init(find_or_start).await
}

async fn find_or_start() -> Server {
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

    let lock = lock(directory.join("lock")).await.expect("the run's lock can be taken");
    let file = directory.join("url");
    let url = match fs::read_to_string(&file) {
        Ok(url) => url,
        Err(_) => start(&file, lifetime, &directory).await,
    };
    drop(lock);
    Server { url }
}

async fn start(file: &Path, lifetime: u32, directory: &Path) -> String {
    let cluster = super::start(Place::Temporary, Durability::None, &[]).await;
    let url = cluster.url(DATABASE);
    fs::write(file, &url).expect("the run's directory is writable");
    cluster.detach(lifetime, Some(directory)).unwrap_or_else(|error| panic!("{error}"));
    url
}

/// The file with the password lies in it, so it is this user's alone.
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
