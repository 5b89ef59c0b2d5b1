//! `postrider serve`: roles, and how it ends.

use std::time::Duration;

use postrider_embedded::Shutdown;
use postrider_testkit::{
    ledger::{Expectation, Ledger},
    postgres::Database,
    receiver::{Answer, Gate, Receiver},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{
    api::call,
    program::run,
    server::{BOOTSTRAP_TOKEN, METRICS_TOKEN, Server, launch},
};

const OVER: Expectation = Expectation { poll: Duration::from_secs(2), everything_ended: true };

#[tokio::test]
async fn sigterm_lets_deliveries_in_hand_finish() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gate = Gate::default();
    receiver.queue([Answer::ok().after(&gate)]);
    let mut server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let accepted = publisher.publish(r#"{"order":42}"#).await;
    receiver.wait_for(1).await;

    server.program.terminate();
    server.program.line(|line| line.contains("draining")).await;
    gate.open();
    let ended = server.program.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(TcpStream::connect(server.address).await.is_err());

    let ledger = Ledger { accepted: vec![accepted], ..Ledger::default() }.with_receiver(&receiver);
    let report = ledger.check(database.pool(), OVER).await;
    assert_eq!((report.delivered, report.attempts, report.repeated_requests), (1, 1, 0));
}

#[tokio::test]
async fn nobody_who_has_begun_a_request_and_says_no_more_holds_up_the_end() {
    let database = Database::fresh().await;
    let server = Server::start(&database, "all").await;
    let mut connections = Vec::new();
    for begun in
        ["G", "GET /health/live HTTP/1.1\r\nhost: x\r\n", "GET /health/live HTTP/1.1\r\nhost: x\r\n\r\nG"]
    {
        let mut connection = TcpStream::connect(server.address).await.expect("it listens");
        connection.write_all(begun.as_bytes()).await.expect("it reads");
        connections.push(connection);
    }
    // The others were accepted before the last has its answer.
    connections[2].readable().await.expect("it answers");

    server.program.terminate();
    let ended = server.program.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.queue([Answer::never()]);
    let mut server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    publisher.publish("{}").await;
    receiver.wait_for(1).await;

    server.program.terminate();
    server.program.line(|line| line.contains("draining")).await;
    server.program.terminate();
    let ended = server.program.ended().await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("second signal"), "{ended:?}");
}

#[tokio::test]
async fn roles_share_the_work() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let accepting = Server::start(&database, "api").await;
    let publisher = accepting.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let accepted = publisher.publish("[1]").await;

    let delivering = Server::start(&database, "worker").await;
    let requests = receiver.wait_for(1).await;
    assert_eq!(requests[0].header("postrider-event-id"), Some(accepted.event_id.to_string().as_str()));

    assert_eq!(delivering.get("/health/live").await.status, 200);
    assert_eq!(delivering.get("/health/ready").await.status, 200);
    let created = call(delivering.address, "POST", "/api/admin/tenants", BOOTSTRAP_TOKEN, "{}").await;
    assert_eq!(created.status, 404, "a worker accepts nothing: {created:?}");
    for address in [accepting.address, delivering.address] {
        assert_eq!(call(address, "GET", "/metrics", METRICS_TOKEN, "").await.status, 200);
        assert_eq!(call(address, "GET", "/metrics", BOOTSTRAP_TOKEN, "").await.status, 403);
        let url = format!("http://{address}");
        let everywhere = format!("0.0.0.0:{}", address.port());
        let by_url = run(&["healthcheck", "--url", &url], &[("POSTRIDER_LISTEN", "127.0.0.1:1")]).await;
        let by_setting = run(&["healthcheck"], &[("POSTRIDER_LISTEN", &everywhere)]).await;
        for ended in [by_url, by_setting] {
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
    }
}

#[tokio::test]
async fn a_database_that_comes_back_is_told_of_in_the_words_of_the_process_alone() {
    let (mut cluster, database) = Database::own_cluster().await;
    let quiet = Server::start(&database, "all").await;
    let asked_for_more = Server::start_with(&database, "all", &[("POSTRIDER_LOG", "info")]).await;
    let servers = [(quiet, false), (asked_for_more, true)];
    for (server, _) in &servers {
        assert_eq!(server.get("/health/ready").await.status, 200, "connections lie idle in the pool");
    }
    cluster.halt(Shutdown::Fast).await.unwrap();
    cluster.resume().await.unwrap();
    for (mut server, hears_the_pool) in servers {
        while server.get("/health/ready").await.status != 200 {}
        server.program.line(|line| line.contains("the database is away")).await;
        server.program.terminate();
        let ended = server.program.ended().await;
        assert_eq!(ended.stdout.contains("\"target\":\"sqlx"), hears_the_pool, "{ended:?}");
    }
}

#[tokio::test]
async fn the_schema_is_made_and_inspected() {
    let database = Database::empty().await;
    let variables = [("DATABASE_URL", database.url())];
    let inspect = || run(&["schema", "inspect", "--json"], &variables);
    let before: serde_json::Value = serde_json::from_str(&inspect().await.stdout).unwrap();
    assert!(before["applied"].is_null() && before["current"] == false, "{before}");

    let first = run(&["migrate"], &variables).await;
    assert!(first.code == Some(0) && first.stdout.contains("created"), "{first:?}");
    let second = run(&["migrate"], &variables).await;
    assert!(second.code == Some(0) && second.stdout.contains("already"), "{second:?}");
    let after: serde_json::Value = serde_json::from_str(&inspect().await.stdout).unwrap();
    assert!(after["applied"] == after["needed"] && after["current"] == true, "{after}");
}

#[tokio::test]
async fn a_role_that_may_not_make_the_schema_hears_once_what_to_do() {
    let database = Database::empty().await;
    let create = "DO $$ BEGIN
            CREATE ROLE postrider_no_rights LOGIN PASSWORD 'no_rights';
        EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
        END $$";
    sqlx::raw_sql(create).execute(database.pool()).await.unwrap();
    let mut url = url::Url::parse(database.url()).unwrap();
    url.set_username("postrider_no_rights").unwrap();
    url.set_password(Some("no_rights")).unwrap();
    let ended = launch(&database, "all", &[("DATABASE_URL", url.as_str())]).ended().await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.stderr.matches("permission denied").count(), 1, "{ended:?}");
    assert!(ended.stderr.trim_end().ends_with("run `postrider migrate`"), "{ended:?}");
}
