//! A cluster keeps what was written to it over every kind of end.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use postrider_embedded::cluster::Error;
use postrider_embedded::{Binaries, Cluster, Place, Shutdown};

use crate::{execute, is_running, number, reachable_directory, settings};

#[tokio::test]
async fn what_was_written_is_there_after_a_second_start() {
    let parent = reachable_directory();
    let place = Place::Directory(parent.path().join("postgresql"));
    let cluster = Cluster::start(settings(place.clone())).await.unwrap();
    execute(&cluster, "CREATE TABLE kept AS SELECT 42::bigint AS answer").await;
    let pid = cluster.pid().unwrap();
    cluster.stop().await.unwrap();
    assert!(!is_running(pid));

    let cluster = Cluster::start(settings(place)).await.unwrap();
    assert_eq!(number(&cluster, "SELECT answer FROM kept").await, 42);
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn halted_clusters_resume_under_the_same_url() {
    let mut cluster = Cluster::start(settings(Place::Temporary)).await.unwrap();
    let url = cluster.url("postgres");
    execute(&cluster, "CREATE TABLE kept AS SELECT 42::bigint AS answer").await;
    // These clusters trade durability for speed: a commit is sure only once it was written out.
    execute(&cluster, "CHECKPOINT").await;
    for shutdown in [Shutdown::Fast, Shutdown::Immediate] {
        let pid = cluster.pid().unwrap();
        cluster.halt(shutdown).await.unwrap();
        assert!(!is_running(pid), "{shutdown:?}");
        assert_eq!(cluster.pid(), None, "{shutdown:?}");
        cluster.resume().await.unwrap();
        assert_eq!(cluster.url("postgres"), url, "{shutdown:?}");
        assert_eq!(number(&cluster, "SELECT answer FROM kept").await, 42, "{shutdown:?}");
    }
}

#[tokio::test]
async fn a_killed_server_leaves_a_pid_file_that_does_not_hinder_the_next_start() {
    let parent = reachable_directory();
    let place = Place::Directory(parent.path().join("postgresql"));
    let cluster = Cluster::start(settings(place.clone())).await.unwrap();
    execute(&cluster, "CREATE TABLE kept AS SELECT 42::bigint AS answer").await;
    // These clusters trade durability for speed: a commit is sure only once it was written out.
    execute(&cluster, "CHECKPOINT").await;
    let pid_file = cluster.data_dir().join("data/postmaster.pid");
    kill(cluster.pid().unwrap());
    drop(cluster);
    assert!(pid_file.is_file(), "the server had no chance to remove it");

    let cluster = Cluster::start(settings(place)).await.unwrap();
    assert_eq!(number(&cluster, "SELECT answer FROM kept").await, 42);
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn the_server_of_an_earlier_run_is_ended_first() {
    let parent = reachable_directory();
    let place = Place::Directory(parent.path().join("postgresql"));
    let cluster = Cluster::start(settings(place.clone())).await.unwrap();
    execute(&cluster, "CREATE TABLE kept AS SELECT 42::bigint AS answer").await;
    let data = cluster.data_dir().join("data");
    cluster.stop().await.unwrap();

    let mut orphan = start_by_hand(&data);
    let cluster = Cluster::start(settings(place)).await.unwrap();
    assert!(orphan.try_wait().unwrap().is_some(), "the orphan has ended");
    assert_eq!(number(&cluster, "SELECT answer FROM kept").await, 42);
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_cluster_in_use_is_refused_and_stays_usable() {
    let parent = reachable_directory();
    let place = Place::Directory(parent.path().join("postgresql"));
    let cluster = Cluster::start(settings(place.clone())).await.unwrap();
    let refused = Cluster::start(settings(place)).await.unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    let holder = format!("the running process {}", std::process::id());
    assert!(refused.to_string().contains(&holder), "{refused}");
    assert_eq!(number(&cluster, "SELECT 1::bigint").await, 1);
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_cluster_of_another_version_is_refused() {
    let parent = reachable_directory();
    let place = Place::Directory(parent.path().join("postgresql"));
    let cluster = Cluster::start(settings(place.clone())).await.unwrap();
    let version_file = cluster.data_dir().join("data/PG_VERSION");
    cluster.stop().await.unwrap();
    std::fs::write(&version_file, "12\n").unwrap();
    let refused = Cluster::start(settings(place)).await.unwrap_err();
    assert!(refused.to_string().contains("made by PostgreSQL 12"), "{refused}");
}

#[tokio::test]
async fn a_server_that_cannot_start_quotes_its_log() {
    let mut settings = settings(Place::Temporary);
    settings.parameters.push(("max_connections".to_owned(), "many".to_owned()));
    let refused = Cluster::start(settings).await.unwrap_err();
    assert!(refused.to_string().contains("invalid value for parameter \"max_connections\""), "{refused}");
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-s", "KILL", &pid.to_string()]).status().unwrap().success());
}

/// What a run leaves behind that was killed together with its guard: a server that nobody stops.
fn start_by_hand(data: &std::path::Path) -> Child {
    let owner = std::fs::metadata(data).unwrap();
    let mut command = Command::new(Binaries::find(None).unwrap().directory().join("postgres"));
    // No server starts without a socket; a Unix one in the data directory needs no free port.
    command.arg("-D").arg(data).args(["-c", "listen_addresses=", "-c"]);
    command.arg(format!("unix_socket_directories={}", data.display()));
    command.current_dir("/").stderr(Stdio::piped());
    if owner.uid() != std::fs::metadata("/proc/self").unwrap().uid() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    let mut child = command.spawn().unwrap();
    let log = std::io::BufReader::new(child.stderr.take().unwrap());
    let ready =
        std::io::BufRead::lines(log).any(|line| line.unwrap().contains("ready to accept connections"));
    assert!(ready, "the orphan did not start");
    child
}
