//! PostgreSQL's disk is full: publishing is refused, nothing that was accepted suffers, and once there is room again
//! everything goes on without hands.
//!
//! The disk is a small one of the test's own, in a mount namespace of its own, which ends with the test however it ends.
//! Root may make one; others do so as root of a user namespace. Where neither is permitted the test fails and says so.

use std::{
    fs::File,
    io::{self, Write as _},
    path::Path,
    process::Command,
};

use postrider_embedded::Place;
use postrider_testkit::{ledger::Ledger, postgres::Database, receiver::Receiver};
use rustix::mount::{MountFlags, mount};

use super::{
    load::{promised, publish},
    scene::{OVER, count, until, until_nothing_is_open},
};
use crate::server::Server;

/// Names the directory to mount at, in the second start of this test, which may.
const MOUNT_POINT: &str = "TEST_MOUNT_POINT";
const NAME: &str = "faults::disk_full::a_full_disk_refuses_events_and_recovers_without_hands";

#[test]
fn a_full_disk_refuses_events_and_recovers_without_hands() {
    #[expect(clippy::disallowed_methods, reason = "the test tells its second start what it may do")]
    let mount_point = std::env::var_os(MOUNT_POINT);
    if let Some(directory) = mount_point {
        let directory = Path::new(&directory);
        make_disk(directory);
        return tokio::runtime::Runtime::new().unwrap().block_on(fill_and_free(directory));
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    let command = command.arg("--").arg(std::env::current_exe().unwrap());
    let ended = command.args([NAME, "--exact", "--nocapture"]).env(MOUNT_POINT, directory.path()).status();
    let ended = ended.expect("`unshare` of util-linux is installed");
    assert!(
        ended.success(),
        "see above; where it says that mounting is not permitted: run the tests as root, or where user namespaces \
         are allowed"
    );
}

fn make_disk(directory: &Path) {
    // Large enough for a new cluster and its log.
    let size = c"size=224m,mode=755";
    if let Err(error) = mount("none", directory, "tmpfs", MountFlags::empty(), Some(size)) {
        panic!("mounting a small disk is not permitted here: {error}");
    }
}

/// Takes all the room there is, until dropped.
struct Ballast<'p>(&'p Path);

impl<'p> Ballast<'p> {
    fn fill(path: &'p Path) -> Self {
        let mut file = File::create(path).unwrap();
        let zeros = vec![0; 64 * 1024];
        let full = loop {
            if let Err(error) = file.write_all(&zeros) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        Self(path)
    }
}

impl Drop for Ballast<'_> {
    fn drop(&mut self) {
        std::fs::remove_file(self.0).unwrap();
    }
}

/// A body that does not get smaller when it is compressed.
fn large_body() -> Vec<u8> {
    let mut random = vec![0; 150_000];
    getrandom::fill(&mut random).unwrap();
    format!("\"{}\"", hex::encode(random)).into_bytes()
}

async fn fill_and_free(disk: &Path) {
    // The log has room of its own: a PostgreSQL that cannot write its log ends, and needs whatever starts it again.
    let parameters = [("max_wal_size", "64MB"), ("min_wal_size", "64MB")];
    let (cluster, database) = Database::own_cluster_in(Place::Directory(disk.to_owned()), &parameters).await;
    let server_pid = cluster.pid();
    let receiver = Receiver::start().await;
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let [_, token] = publisher.tokens();
    let mut ledger = Ledger::default();
    let first = publish(server.address, token, "first", b"[1]").await.unwrap();
    ledger.accepted.push(promised(&first, "first", b"[1]"));
    receiver.wait_for(1).await;
    for statement in ["SELECT pg_switch_wal()", "CHECKPOINT"] {
        sqlx::query(statement).execute(database.pool()).await.unwrap();
    }

    let ballast_path = disk.join("ballast");
    let ballast = Ballast::fill(&ballast_path);
    let body = large_body();
    for _ in 0..3 {
        let refused = publish(server.address, token, "second", &body).await.unwrap();
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(server.get("/health/live").await.status, 200);
    }
    assert_eq!(count(database.pool(), "SELECT count(*) FROM postrider.events").await, 1);
    drop(ballast);

    let mut answer = None;
    let accepted = async || {
        answer = Some(publish(server.address, token, "second", &body).await.unwrap());
        answer.as_ref().is_some_and(|answer| answer.status == 202)
    };
    until("events are accepted again", accepted).await;
    ledger.accepted.push(promised(&answer.unwrap(), "second", &body));
    assert_eq!(cluster.pid(), server_pid, "nobody started PostgreSQL again");
    until_nothing_is_open(database.pool()).await;
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!((report.events, report.delivered, report.repeated_requests), (2, 2, 0));
}
