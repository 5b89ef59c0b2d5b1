//! TLS on both sides: PostgreSQL behind `sslmode=verify-full`, and receivers whose certificate a private authority signed.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    time::Duration,
};

use postrider_testkit::{
    authority::Authority,
    ledger::{Expectation, Ledger},
    postgres::Database,
    rabbitmq::Broker,
    receiver::Receiver,
    redis::Redis,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    api::call,
    program::run,
    server::{Server, launch},
};

/// Writes a file that the database server, another account perhaps, reads as its own.
fn write_for_server(data: &Path, name: &str, content: &str) {
    let path = data.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let owner = fs::metadata(data).unwrap();
    if owner.uid() != fs::metadata(&path).unwrap().uid() {
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
}

fn write_certificate(directory: &TempDir, name: &str, authority: &Authority) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, authority.certificate_pem()).unwrap();
    path
}

#[tokio::test]
async fn the_database_is_believed_only_by_its_name_and_its_authority() {
    let authority = Authority::default();
    let directory = tempfile::tempdir().unwrap();
    let trusted = write_certificate(&directory, "trusted.pem", &authority);
    let foreign = write_certificate(&directory, "foreign.pem", &Authority::default());

    let (cluster, database) = Database::own_cluster().await;
    let data: String = sqlx::query_scalar("SELECT current_setting('data_directory')")
        .fetch_one(database.pool())
        .await
        .unwrap();
    let issued = authority.issue_pem(&["127.0.0.1"]);
    write_for_server(Path::new(&data), "server.crt", &issued.certificate);
    write_for_server(Path::new(&data), "server.key", &issued.key);
    sqlx::query("ALTER SYSTEM SET ssl = on").execute(database.pool()).await.unwrap();
    let mut cluster = cluster;
    cluster.halt(postrider_embedded::Shutdown::Fast).await.unwrap();
    cluster.resume().await.unwrap();

    let inspect = async |host: &str, mode: &str, authority: &Path| {
        let url = database.url().replace("127.0.0.1", host);
        let url = format!("{url}?sslmode={mode}&sslrootcert={}", authority.display());
        run(&["schema", "inspect"], &[("DATABASE_URL", &url)]).await
    };
    let accepted = inspect("127.0.0.1", "verify-full", &trusted).await;
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    let other_authority = inspect("127.0.0.1", "verify-full", &foreign).await;
    assert!(
        other_authority.code == Some(1) && other_authority.stderr.contains("UnknownIssuer"),
        "{other_authority:?}"
    );
    // The certificate names the address only.
    let other_name = inspect("localhost", "verify-full", &trusted).await;
    assert!(other_name.code == Some(1) && other_name.stderr.contains("not valid for name"), "{other_name:?}");
    assert_eq!(inspect("localhost", "verify-ca", &trusted).await.code, Some(0));
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn redis_is_believed_only_by_its_authority() {
    let authority = Authority::default();
    let directory = tempfile::tempdir().unwrap();
    let trusted = write_certificate(&directory, "trusted.pem", &authority);
    let foreign = write_certificate(&directory, "foreign.pem", &Authority::default());
    let (database, redis) = (Database::fresh().await, Redis::with_tls(&authority).await);
    let url = redis.tls_url();
    for (file, expected) in [(&trusted, "up"), (&foreign, "down")] {
        let variables =
            [("POSTRIDER_REDIS_URL", url.as_str()), ("POSTRIDER_REDIS_CA_FILE", file.to_str().unwrap())];
        let mut program = launch(&database, "worker", &variables);
        if expected == "down" {
            let line = program.line(|line| line.contains("Redis cannot be used")).await;
            assert!(line.contains("UnknownIssuer") && !line.contains(&url), "{line}");
        }
        let line = program.line(|line| line.contains("\"listening\"")).await;
        let logged: Value = serde_json::from_str(&line).unwrap();
        let address = logged["address"].as_str().unwrap().parse().unwrap();
        let ready = call(address, "GET", "/health/ready", "", "").await;
        assert_eq!(
            (ready.status, &ready.body["dependencies"]["redis"]),
            (200, &Value::from(expected)),
            "{ready:?}"
        );
    }
}

/// What is not believed is not used, and is said to be away.
#[tokio::test]
async fn rabbitmq_is_believed_only_by_its_authority() {
    let authority = Authority::default();
    let directory = tempfile::tempdir().unwrap();
    let trusted = write_certificate(&directory, "trusted.pem", &authority);
    let foreign = write_certificate(&directory, "foreign.pem", &Authority::default());
    let database = Database::fresh().await;
    let (_node, broker) = Broker::own_node_with_tls(&authority).await;
    let url = broker.tls_url();
    let start = async |file: &Path| {
        let variables = [
            ("POSTRIDER_RABBITMQ_URL", url.as_str()),
            ("POSTRIDER_RABBITMQ_CA_FILE", file.to_str().unwrap()),
        ];
        Server::start_with(&database, "worker", &variables).await
    };
    let (distrustful, server) = (start(&foreign).await, start(&trusted).await);
    let health = async |server: &Server| call(server.address, "GET", "/health/ready", "", "").await;
    let believed = async {
        while health(&server).await.body["status"] != "ready" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), believed).await.expect("the broker is used");
    for (server, status, state) in [(&server, "ready", "up"), (&distrustful, "degraded", "down")] {
        let shown = health(server).await;
        assert_eq!((shown.status, &shown.body["status"]), (200, &Value::from(status)), "{shown:?}");
        assert_eq!(shown.body["dependencies"]["rabbitmq"], state, "{shown:?}");
        assert_eq!(shown.body["notes"]["rabbitmq"].is_string(), state == "down", "{shown:?}");
    }
}

#[tokio::test]
async fn receivers_may_be_vouched_for_by_a_private_authority() {
    let authority = Authority::default();
    let directory = tempfile::tempdir().unwrap();
    let file = write_certificate(&directory, "authority.pem", &authority);
    let receiver = Receiver::start_tls(authority.server(&["localhost"])).await;
    let stranger = Receiver::start_tls(Authority::default().server(&["localhost"])).await;
    let database = Database::fresh().await;
    let server = Server::start_with(&database, "all", &[("POSTRIDER_CA_FILE", file.to_str().unwrap())]).await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/hook")).await;
    let accepted = publisher.publish("[1]").await;
    assert_eq!(receiver.wait_for(1).await[0].body, "[1]");

    let retry = json!({ "maxAttempts": 1 });
    publisher
        .manage("PATCH", "/endpoints/warehouse", json!({ "url": stranger.url("/"), "retry": retry }), 200)
        .await;
    let refused = publisher.publish("[2]").await;
    let dead = publisher.wait_for_delivery(&refused, "dead_lettered").await;
    let attempts = format!("/deliveries/{}/attempts", dead["id"].as_str().unwrap());
    let attempts = publisher.manage("GET", &attempts, Value::Null, 200).await;
    let shown = attempts.body["data"][0].to_string();
    assert!(shown.contains("\"tls\"") && shown.contains("certificate"), "{shown}");

    let ledger = Ledger { accepted: vec![accepted, refused], ..Ledger::default() };
    let over = Expectation { poll: Duration::from_secs(2), everything_ended: true };
    let report = ledger.with_receiver(&receiver).with_receiver(&stranger).check(database.pool(), over).await;
    assert_eq!((report.delivered, report.dead_lettered), (1, 1));
}
