//! Where clusters live, who may enter them, and when they go.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use postrider_embedded::{Binaries, Cluster, Place, binaries, cluster};
use sqlx::{Connection as _, PgConnection};

use crate::{is_running, number, reachable_directory, settings};

#[tokio::test]
async fn temporary_clusters_go_when_dropped() {
    let cluster = Cluster::start(settings(Place::Temporary)).await.unwrap();
    let (pid, directory) = (cluster.pid().unwrap(), cluster.data_dir().to_owned());
    assert!(directory.is_dir());
    drop(cluster);
    assert!(!is_running(pid));
    assert!(!directory.exists());
}

#[tokio::test]
async fn a_detached_cluster_goes_with_the_process_it_waits_for() {
    let mut awaited = Command::new("sleep").arg("600").spawn().unwrap();
    let cluster = Cluster::start(settings(Place::Temporary)).await.unwrap();
    let (pid, directory) = (cluster.pid().unwrap(), cluster.data_dir().to_owned());
    let companion = tempfile::tempdir().unwrap().keep();
    cluster.detach(awaited.id(), Some(&companion)).unwrap();
    assert!(is_running(pid), "outlives its value");

    awaited.kill().unwrap();
    awaited.wait().unwrap();
    // The guard is nobody's child that could be waited for; the directories are the last thing it removes.
    let gone = async {
        while directory.exists() || companion.exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), gone).await.expect("removed within a minute");
    assert!(!is_running(pid));
}

#[tokio::test]
async fn only_the_holder_of_the_password_gets_in() {
    let cluster = Cluster::start(settings(Place::Temporary)).await.unwrap();
    let directory = cluster.data_dir();
    for (name, mode) in [("data", 0o700), ("password", 0o600), ("lock", 0o600), ("server.log", 0o600)] {
        let found = fs::metadata(directory.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{name}: {found:o}");
    }
    // Nobody but this process may put another file in the place of one of these.
    let directory_itself = fs::metadata(directory).unwrap();
    assert_eq!(directory_itself.uid(), fs::metadata("/proc/self").unwrap().uid());
    assert_eq!(directory_itself.permissions().mode() & 0o022, 0);
    assert_eq!(number(&cluster, "SELECT 1::bigint").await, 1);

    let password = fs::read_to_string(directory.join("password")).unwrap();
    assert_eq!(password.len(), 64);
    for url in [cluster.url(cluster::DATABASE), cluster.local_url(cluster::DATABASE)] {
        for wrong in ["", "postgres", &password[1..]] {
            let refused = PgConnection::connect(&url.replace(&password, wrong)).await.unwrap_err();
            assert!(refused.to_string().contains("password"), "{refused}");
        }
    }
    assert!(!format!("{cluster:?}").contains(&password));
}

/// Root's server runs as somebody else, who cannot enter a directory below one that is root's alone.
#[tokio::test]
async fn a_directory_that_the_server_cannot_reach_is_replaced_and_found_again() {
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let wanted = parent.path().join("postgresql");
    let cluster = Cluster::start(settings(Place::Directory(wanted.clone()))).await.unwrap();
    let used = cluster.data_dir().to_owned();
    let runs_as_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    assert_eq!(used != wanted.canonicalize().unwrap(), runs_as_root, "{}", used.display());
    cluster.stop().await.unwrap();

    let cluster = Cluster::start(settings(Place::Directory(wanted.clone()))).await.unwrap();
    assert_eq!(cluster.data_dir(), used);
    cluster.stop().await.unwrap();
    if runs_as_root {
        assert!(used.starts_with("/var/lib/postrider"), "{}", used.display());
        fs::remove_dir_all(&used).unwrap();

        let anew = Cluster::start(settings(Place::Directory(wanted))).await.unwrap();
        let directory = anew.data_dir().to_owned();
        anew.stop().await.unwrap();
        fs::remove_dir_all(directory).unwrap();
    }
}

#[tokio::test]
async fn an_interrupted_initialisation_is_done_again() {
    let parent = reachable_directory();
    let wanted = parent.path().join("postgresql");
    fs::create_dir_all(wanted.join("data.unfinished/base")).unwrap();
    fs::set_permissions(&wanted, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(wanted.join("lock"), "").unwrap();
    let cluster = Cluster::start(settings(Place::Directory(wanted.clone()))).await.unwrap();
    assert_eq!(cluster.data_dir(), wanted.canonicalize().unwrap());
    assert_eq!(number(&cluster, "SELECT 1::bigint").await, 1);
    assert!(!wanted.join("data.unfinished").exists());
}

#[test]
fn a_configured_directory_that_does_not_serve_is_refused_by_name() {
    let empty = tempfile::tempdir().unwrap();
    let refused = Binaries::find(Some(empty.path())).unwrap_err();
    assert!(matches!(refused, binaries::Error::Configured { .. }), "{refused}");
    assert!(refused.to_string().contains(&empty.path().display().to_string()), "{refused}");

    let found = Binaries::find(None).unwrap();
    assert_eq!(Binaries::find(Some(found.directory())).unwrap(), found);
    assert!(found.major_version() >= binaries::OLDEST_VERSION);
}

/// How the server sees where its client is: over a socket it has no address.
async fn client_address(url: &str) -> Option<String> {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar("SELECT host(inet_client_addr())").fetch_one(&mut connection).await.unwrap()
}

#[tokio::test]
async fn processes_of_this_machine_use_a_socket_unless_its_path_does_not_suit_one() {
    let parent = reachable_directory();
    let near = parent.path().join("näher & 50%");
    let tcp = Some("127.0.0.1".to_owned());
    let [far, list] = ["x".repeat(100), "a,b".to_owned()].map(|name| parent.path().join(name));
    for (directory, expected) in [(near, None), (far, tcp.clone()), (list, tcp.clone())] {
        let cluster = Cluster::start(settings(Place::Directory(directory))).await.unwrap();
        assert_eq!(client_address(&cluster.local_url(cluster::DATABASE)).await, expected);
        assert_eq!(client_address(&cluster.url(cluster::DATABASE)).await, tcp);
        cluster.stop().await.unwrap();
    }
}
