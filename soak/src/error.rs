//! What keeps a soak from coming to a verdict.

use std::{io, path::PathBuf, time::Duration};

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the soak did not end within {} minutes", .0.as_secs() / 60)]
    TooLong(Duration),
    #[error("the database's programs cannot be used")]
    Binaries(#[from] postrider_embedded::binaries::Error),
    #[error("the database server cannot be run")]
    Cluster(#[from] postrider_embedded::cluster::Error),
    #[error("the database cannot be asked")]
    Database(#[from] sqlx::Error),
    #[error("process {process} did not come up: {said}. Its log: {log}")]
    NotUp { process: String, said: String, log: PathBuf },
    #[error("process {process} did not end when asked to")]
    NotDown { process: String },
    #[error("process {process} listens, but does not take part: no heartbeat of it is in the database")]
    NoHeartbeat { process: String },
    #[error("{request} was answered {status}: {body}")]
    Refused { request: String, status: u16, body: String },
    #[error("a publisher broke off")]
    Publisher(#[from] tokio::task::JoinError),
    #[error("what the processes use beside the database cannot be handled")]
    Dependency(#[source] tokio::task::JoinError),
    #[error("there is no {0} that anything could befall")]
    NoDependency(&'static str),
    #[error("could not {action} {path}")]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
