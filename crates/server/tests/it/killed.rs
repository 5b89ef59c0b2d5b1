//! `kill -9` at each step of a delivery: nothing is lost, the attempt shows as interrupted, the delivery's id stays.

use std::time::Duration;

use postrider_testkit::{
    ledger::{Accepted, Expectation, Ledger, Report},
    postgres::Database,
    receiver::{Answer, Receiver},
};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::{net::TcpListener, task::JoinSet};

use crate::server::{Publisher, Server, accepted};

const OVER: Expectation = Expectation { poll: Duration::from_secs(2), everything_ended: true };

/// What is left to another process after the first one was killed.
struct Scene {
    database: Database,
    receiver: Receiver,
    publisher: Publisher,
    accepted: Accepted,
}

impl Scene {
    /// Starts another process, waits until the receiver has so many requests and the event is delivered.
    async fn recover(self, requests: usize) -> Report {
        let server = Server::start(&self.database, "all").await;
        let publisher = self.publisher.at(&server);
        let url = self.receiver.url("/");
        publisher.manage("PATCH", "/endpoints/warehouse", json!({ "url": url }), 200).await;
        let received = self.receiver.wait_for(requests).await;
        let delivery = publisher.wait_for_delivery(&self.accepted, "delivered").await;
        assert!(received.iter().all(|request| request.webhook_id() == delivery["id"]), "{received:?}");

        let path = format!("/deliveries/{}/attempts", delivery["id"].as_str().unwrap());
        let attempts = publisher.manage("GET", &path, Value::Null, 200).await.body["data"].clone();
        let mut outcomes: Vec<_> =
            attempts.as_array().unwrap().iter().map(|attempt| &attempt["outcome"]).collect();
        outcomes.sort_by_key(|outcome| outcome.as_str() != Some("interrupted"));
        assert_eq!(outcomes, ["interrupted", "delivered"]);
        let ledger = Ledger { accepted: vec![self.accepted], ..Ledger::default() };
        ledger.with_receiver(&self.receiver).check(self.database.pool(), OVER).await
    }
}

#[tokio::test]
async fn after_the_claim() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    // Takes connections and stays silent: the handshake never ends, so the request is never sent.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&format!("https://localhost:{}/", silent.local_addr().unwrap().port())).await;
    let accepted = publisher.publish("[1]").await;
    publisher.wait_for_delivery(&accepted, "in_flight").await;
    server.program.kill();
    server.program.ended().await;

    let report = Scene { database, receiver, publisher, accepted }.recover(1).await;
    assert_eq!((report.delivered, report.interrupted_attempts, report.repeated_requests), (1, 1, 0));
}

#[tokio::test]
async fn after_the_request() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.queue([Answer::never()]);
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let accepted = publisher.publish("[2]").await;
    receiver.wait_for(1).await;
    server.program.kill();
    server.program.ended().await;

    let report = Scene { database, receiver, publisher, accepted }.recover(2).await;
    assert_eq!((report.delivered, report.interrupted_attempts, report.repeated_requests), (1, 1, 1));
}

#[tokio::test]
async fn after_the_answer() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    // The answer comes, but its result cannot be written.
    let mut obstacle = database.pool().begin().await.unwrap();
    sqlx::query("LOCK TABLE postrider.deliveries IN SHARE MODE").execute(&mut *obstacle).await.unwrap();
    let accepted = publisher.publish("[3]").await;
    receiver.wait_for(1).await;
    while waiting_sessions(database.pool(), "count(*)").await == 0 {}
    server.program.kill();
    server.program.ended().await;
    // The statement would still run to its end in a session whose client is gone.
    waiting_sessions(database.pool(), "count(pg_terminate_backend(pid))").await;
    while waiting_sessions(database.pool(), "count(*)").await != 0 {}
    obstacle.rollback().await.unwrap();

    let report = Scene { database, receiver, publisher, accepted }.recover(2).await;
    assert_eq!((report.delivered, report.interrupted_attempts, report.repeated_requests), (1, 1, 1));
}

/// Asks about the sessions that wait for a lock.
async fn waiting_sessions(pool: &PgPool, what: &str) -> i64 {
    let query = format!(
        "SELECT {what} FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    );
    sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn a_key_makes_one_event_however_many_ask_and_whoever_is_killed() {
    const RACING: usize = 50;
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let mut racing = JoinSet::new();
    for _ in 0..RACING {
        let publisher = publisher.clone();
        racing.spawn(async move { publisher.try_publish_under("order-42", "[42]").await });
    }
    let answers = racing.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 202).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), RACING - 1, "{answers:?}");
    assert_eq!(publisher.try_publish_under("order-42", "[43]").await.status, 409);
    server.program.kill();
    server.program.ended().await;

    let server = Server::start(&database, "all").await;
    let publisher = publisher.at(&server);
    let repeated = publisher.try_publish_under("order-42", "[42]").await;
    assert!(repeated.status == 200 && repeated.body["duplicate"] == true, "{repeated:?}");
    assert_eq!(publisher.try_publish_under("order-42", "[43]").await.status, 409);

    let key = Some(("orders".to_owned(), "order-42".parse().unwrap()));
    let promises: Vec<Accepted> = answers
        .iter()
        .chain([&repeated])
        .map(|answer| Accepted { key: key.clone(), ..accepted(answer, b"[42]") })
        .collect();
    publisher.wait_for_delivery(&promises[0], "delivered").await;
    let ledger = Ledger { accepted: promises, ..Ledger::default() };
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!((report.events, report.repeated_answers, report.delivered), (1, RACING, 1));
}
