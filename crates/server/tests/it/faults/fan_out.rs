//! The storing of an event is cut off between the rows of its fan-out: all of it is stored, or nothing.

use postrider_testkit::{
    ledger::Ledger,
    postgres::Database,
    receiver::Receiver,
    stall::{self, Stall},
};
use tokio::task::JoinSet;

use super::{
    load::{promised, publish},
    scene::{OVER, count, endpoint, until, until_nothing_is_open, until_sessions_wait},
};
use crate::server::{Publisher, Server};

const FAN_OUT: usize = 5;
const DAY_SECONDS: u32 = 86_400;

/// A process that takes events, and another that would deliver them is not there yet, so that nobody has to be declared
/// dead first.
struct Scene {
    database: Database,
    receiver: Receiver,
    accepting: Server,
    publisher: Publisher,
}

impl Scene {
    async fn new(more: &[(&str, &str)]) -> Self {
        let database = Database::fresh().await;
        let receiver = Receiver::start().await;
        let accepting = Server::start_with(&database, "api", more).await;
        let publisher = accepting.publisher().await;
        for name in ["one", "two", "three", "four", "five"] {
            endpoint(&publisher, name, &receiver.url(&format!("/{name}")), DAY_SECONDS).await;
        }
        Self { database, receiver, accepting, publisher }
    }

    fn publishing(&self) -> JoinSet<Option<u16>> {
        let (address, token) = (self.accepting.address, self.publisher.tokens()[1].to_owned());
        let mut publishing = JoinSet::new();
        publishing.spawn(async move {
            publish(address, &token, "order-1", b"[1]").await.ok().map(|answer| answer.status)
        });
        publishing
    }

    /// Stops the storing of an event when two of its deliveries are written and the third is not, and does something to
    /// it there.
    async fn in_the_middle(&self, strike: impl AsyncFnOnce()) {
        let writing = "BEFORE INSERT ON postrider.delivery_queue FOR EACH ROW";
        let stall = Stall::when(&self.database, writing, &stall::row(3)).await;
        let mut publishing = self.publishing();
        until_sessions_wait(self.database.pool(), "advisory", 1).await;
        strike().await;
        stall.end().await;
        assert_ne!(publishing.join_next().await.unwrap().unwrap(), Some(202), "nobody may promise anything");
        let storing = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()
                          AND query LIKE '%INSERT INTO postrider.events%'";
        until("nothing is being stored", async || count(self.database.pool(), storing).await == 0).await;
    }

    /// How many events are there, each with its key and all its deliveries.
    async fn whole_events(&self) -> i64 {
        let pool = self.database.pool();
        let events = count(pool, "SELECT count(*) FROM postrider.events").await;
        assert_eq!(count(pool, "SELECT count(*) FROM postrider.idempotency_keys").await, events);
        let deliveries = count(pool, "SELECT count(*) FROM postrider.delivery_queue").await;
        assert_eq!(deliveries, events * i64::try_from(FAN_OUT).unwrap());
        events
    }

    /// A repeat under the same key makes one event of it, whatever was stored.
    async fn settle_by_key(&self) {
        let is_stored = self.whole_events().await == 1;
        let server = Server::start(&self.database, "all").await;
        let answer = publish(server.address, self.publisher.tokens()[1], "order-1", b"[1]").await.unwrap();
        assert_eq!(answer.status, if is_stored { 200 } else { 202 }, "{answer:?}");
        let ledger = Ledger { accepted: vec![promised(&answer, "order-1", b"[1]")], ..Ledger::default() };
        assert_eq!(ledger.accepted[0].deliveries, u32::try_from(FAN_OUT).unwrap());
        self.receiver.wait_for(FAN_OUT).await;
        until_nothing_is_open(self.database.pool()).await;
        let report = ledger.with_receiver(&self.receiver).check(self.database.pool(), OVER).await;
        assert_eq!((report.events, report.delivered, report.repeated_requests), (1, FAN_OUT, 0));
    }
}

#[tokio::test]
async fn cut_off_by_the_database_nothing_of_the_event_is_stored() {
    let scene = Scene::new(&[]).await;
    // Returns when the session is gone, or does not count it.
    let end = "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event = 'advisory'";
    scene.in_the_middle(async || assert_eq!(count(scene.database.pool(), end).await, 1)).await;
    assert_eq!(scene.whole_events().await, 0);
    scene.settle_by_key().await;
}

#[tokio::test]
async fn killed_in_the_middle_all_of_the_event_is_stored_or_nothing() {
    let scene = Scene::new(&[]).await;
    scene.in_the_middle(async || scene.accepting.program.kill()).await;
    scene.settle_by_key().await;
}

#[tokio::test]
async fn killed_after_the_commit_all_of_it_is_stored_and_the_key_finds_it() {
    let scene = Scene::new(&[("POSTRIDER_FAILPOINT", "ingest_committed:kill:0")]).await;
    assert_eq!(scene.publishing().join_next().await.unwrap().unwrap(), None, "the process died");
    assert_eq!(scene.whole_events().await, 1);
    scene.settle_by_key().await;
}
