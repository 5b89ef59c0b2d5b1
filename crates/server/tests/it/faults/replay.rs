//! A replay through a real process: killed in the middle of a batch and between two, and after an outage of its endpoint.

use std::collections::BTreeSet;

use postrider_testkit::{
    ledger::{Accepted, Ledger},
    postgres::Database,
    receiver::{Answer, Gate, Receiver, Request},
};
use serde_json::{Value, json};

use super::scene::{OVER, count, until, until_nothing_is_open};
use crate::server::{Publisher, Server};

/// So that an endpoint gets 16 at a time, and a replay takes several batches.
const MAX_IN_FLIGHT: u16 = 2;
const LETTERS: usize = 60;

const DEAD: &str = "SELECT count(*) FROM postrider.deliveries WHERE outcome = 'dead_lettered'";

/// Events that died since their receiver refused them, and the replay of all that waits to be executed.
struct Scene {
    database: Database,
    receiver: Receiver,
    publisher: Publisher,
    accepted: Vec<Accepted>,
    /// Its address in the API.
    replay: String,
}

impl Scene {
    async fn new(server: &Server, database: Database, rate_limit: Value) -> Self {
        let receiver = Receiver::start().await;
        receiver.answer_with(|_| Answer::status(400));
        let publisher = server.publisher().await;
        publisher.deliver_to(&receiver.url("/")).await;
        let limits = json!({ "maxInFlight": MAX_IN_FLIGHT, "rateLimit": rate_limit });
        publisher.manage("PATCH", "/endpoints/warehouse", limits, 200).await;
        let mut accepted = Vec::with_capacity(LETTERS);
        for number in 0..LETTERS {
            accepted.push(publisher.publish(&format!("[{number}]")).await);
        }
        until("all are dead letters", async || {
            count(database.pool(), DEAD).await == i64::try_from(LETTERS).unwrap()
        })
        .await;
        let filter = json!({ "filter": { "endpointId": "warehouse", "type": "order.*" } });
        let preview = publisher.manage("POST", "/replays", filter, 201).await;
        assert_eq!(preview.body["matches"], LETTERS);
        assert_eq!(preview.body["sample"].as_array().unwrap().len(), 10);
        let replay = format!("/replays/{}", preview.text("id"));
        Self { database, receiver, publisher, accepted, replay }
    }

    async fn execute(&self) {
        let started =
            self.publisher.manage("POST", &format!("{}/execute", self.replay), Value::Null, 202).await;
        assert_eq!(started.body["state"], "running");
    }

    async fn look(&self) -> Value {
        self.publisher.manage("GET", &self.replay, Value::Null, 200).await.body
    }

    /// Lets everything end and checks that each letter was delivered, under the id it had.
    async fn check(self) -> Database {
        until("the replay is finished", async || self.look().await["state"] == "finished").await;
        until_nothing_is_open(self.database.pool()).await;
        let shown = self.look().await;
        assert_eq!((&shown["matches"], &shown["replayed"]), (&json!(LETTERS), &json!(LETTERS)), "{shown}");
        let ids = |requests: &[Request]| {
            requests.iter().map(|request| request.webhook_id().to_owned()).collect::<BTreeSet<_>>()
        };
        let requests = self.receiver.requests();
        let (refused, replayed) = requests.split_at(LETTERS);
        assert_eq!(ids(refused), ids(replayed), "the same ids, and no other");
        let ledger = Ledger { accepted: self.accepted, ..Ledger::default() };
        let report = ledger.with_receiver(&self.receiver).check(self.database.pool(), OVER).await;
        assert_eq!((report.events, report.delivered, report.dead_lettered), (LETTERS, LETTERS, 0));
        self.database
    }
}

/// A worker dies at the failpoint, and another one finishes what it has begun.
async fn killed_at(failpoint: &str, committed: i64) {
    let database = Database::fresh().await;
    let server = Server::start(&database, "all").await;
    let mut scene = Scene::new(&server, database, Value::Null).await;
    server.program.terminate();
    server.program.ended().await;
    let gate = Gate::default();
    let held = gate.clone();
    scene.receiver.answer_with(move |_| Answer::ok().after(&held));
    let api = Server::start(&scene.database, "api").await;
    scene.publisher = scene.publisher.at(&api);
    scene.execute().await;

    let worker = Server::start_with(&scene.database, "worker", &[("POSTRIDER_FAILPOINT", failpoint)]).await;
    assert_eq!(worker.program.ended().await.code, None, "it was killed");
    let open = "SELECT count(*) FROM postrider.delivery_queue";
    // The database may still be at it.
    until("the session of the dead process is over", async || {
        let sessions = "SELECT count(*) FROM pg_stat_activity
                         WHERE datname = current_database() AND state = 'idle in transaction'";
        count(scene.database.pool(), sessions).await == 0
    })
    .await;
    assert_eq!(count(scene.database.pool(), open).await, committed, "what was committed, whole");
    let counted = "SELECT sum(replayed) FROM postrider.replay_endpoints";
    assert_eq!(count(scene.database.pool(), counted).await, committed, "and it was counted");
    assert_eq!(scene.look().await["replayed"], committed);

    let _worker = Server::start(&scene.database, "worker").await;
    gate.open();
    scene.check().await;
}

#[tokio::test]
async fn a_process_that_dies_within_its_first_batch_has_moved_nothing() {
    killed_at("replay_moved:kill:0", 0).await;
}

#[tokio::test]
async fn a_process_that_dies_after_a_batch_leaves_the_rest_to_another() {
    killed_at("replay_committed:kill:0", 16).await;
}

/// A receiver comes back after an outage, and somebody replays what died of it: it is asked carefully at first, and never
/// for more at once, or faster, than its endpoint says.
#[tokio::test]
async fn a_receiver_that_has_recovered_is_not_flooded() {
    const PER_SECOND: i64 = 20;
    const BURST: i64 = 5;
    let database = Database::fresh().await;
    let server = Server::start(&database, "all").await;
    let rate = json!({ "perSecond": PER_SECOND, "burst": BURST });
    let scene = Scene::new(&server, database, rate).await;
    let gate = Gate::default();
    let held = gate.clone();
    scene.receiver.answer_with(move |_| Answer::ok().after(&held));
    scene.execute().await;
    let pending = "SELECT count(*) FROM postrider.delivery_queue WHERE state = 'pending'";
    until("as many wait as may", async || count(scene.database.pool(), pending).await == 16).await;
    let in_flight = scene.receiver.requests().len() - LETTERS;
    assert!(in_flight <= usize::from(MAX_IN_FLIGHT), "{in_flight} requests at once");
    gate.open();
    let database = scene.check().await;
    // The attempts of the replay, each with how many began in the second before.
    let most: i64 = sqlx::query_scalar(
        "SELECT max(began) FROM (
             SELECT count(*) OVER (ORDER BY started_at RANGE BETWEEN interval '1 s' PRECEDING AND CURRENT ROW) AS began
               FROM postrider.attempts WHERE attempt_number = 2) AS a",
    )
    .fetch_one(database.pool())
    .await
    .unwrap();
    assert!(most <= PER_SECOND + BURST + 1, "{most} requests within a second");
}
