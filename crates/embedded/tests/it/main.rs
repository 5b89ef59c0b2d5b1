//! Clusters from the PostgreSQL that is installed here, started, ended in every way, and started again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod places;
mod restarts;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use postrider_embedded::{Binaries, Cluster, Durability, Place, Settings, cluster};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tempfile::TempDir;

fn settings(place: Place) -> Settings {
    Settings {
        binaries: Binaries::find(None).unwrap(),
        place,
        durability: Durability::None,
        parameters: vec![("shared_buffers".to_owned(), "16MB".to_owned())],
    }
}

/// A directory that every account may enter, whatever the file mode mask is.
fn reachable_directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let everybody = Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), everybody).unwrap();
    directory
}

async fn execute(cluster: &Cluster, statement: &str) {
    let mut connection = PgConnection::connect(&cluster.url(cluster::DATABASE)).await.unwrap();
    connection.execute(AssertSqlSafe(statement)).await.unwrap();
    connection.close().await.unwrap();
}

async fn number(cluster: &Cluster, query: &str) -> i64 {
    let mut connection = PgConnection::connect(&cluster.url(cluster::DATABASE)).await.unwrap();
    let number = sqlx::query_scalar(AssertSqlSafe(query)).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    number
}

fn is_running(pid: u32) -> bool {
    // A process that ended but was not reaped has no directory it works in.
    std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok()
}
