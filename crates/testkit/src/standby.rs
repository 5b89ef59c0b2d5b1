//! A streaming standby of a cluster, for tests of a failover.
//!
//! Invariant: it is a copy of the stopped primary, so it has its password and everything that was committed.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use postrider_embedded::{Cluster, Durability, Place, Shutdown};
use sqlx::postgres::PgConnectOptions;
use tempfile::TempDir;

use crate::{
    postgres::{self, Database},
    proxy::Proxy,
};

/// A standby, and the way on which it follows its primary.
#[derive(Debug)]
pub struct Standby {
    pub cluster: Cluster,
    /// Leads to the primary: stalled, it keeps the standby from hearing of anything new.
    pub way: Proxy,
    /// Declared after the cluster, which works in it.
    _directory: TempDir,
}

impl Standby {
    /// Makes a standby; the primary stops for as long as it is copied.
    pub async fn of(primary: &mut Cluster, database: &Database) -> Self {
        primary.halt(Shutdown::Fast).await.expect("the primary stops");
        let directory = copy(primary.data_dir()).expect("the cluster can be copied");
        primary.resume().await.expect("the primary starts again");

        let way = Proxy::before(database.url()).await;
        let follow = following(database.url(), &way);
        let place = Place::Directory(directory.path().to_owned());
        let parameters = [("primary_conninfo", follow.as_str()), ("hot_standby", "on")];
        let cluster = postgres::start(place, Durability::Full, &parameters).await;
        Self { cluster, way, _directory: directory }
    }
}

/// Copies with owners and rights, and says in the copy that it is a standby's.
fn copy(root: &Path) -> io::Result<TempDir> {
    let directory = tempfile::tempdir()?;
    // The server may run as another account.
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let status = Command::new("cp").arg("-a").arg(root.join(".")).arg(directory.path()).status()?;
    if !status.success() {
        return Err(io::Error::other(format!("cp ended with {status}")));
    }
    fs::write(directory.path().join("data/standby.signal"), "")?;
    Ok(directory)
}

/// How the standby reaches its primary.
fn following(database_url: &str, way: &Proxy) -> String {
    let options: PgConnectOptions = database_url.parse().expect("a database URL");
    let (_, rest) = database_url.split_once("://").expect("a URL");
    let (credentials, _) = rest.split_once('@').expect("with a password");
    let (user, password) = credentials.split_once(':').expect("after the user");
    assert_eq!(options.get_username(), user, "the user is what stands before the colon");
    let port = way.address().port();
    format!("host=127.0.0.1 port={port} user={user} password={password} application_name=standby")
}
