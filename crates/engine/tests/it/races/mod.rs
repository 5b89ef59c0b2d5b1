//! Races of a running engine, in orders that are forced: by a clock that only the test moves, by receivers that answer when
//! they are told to, by locks that the test holds. Each test fails if the answer to its race is taken out.

mod batches;
mod claims;
mod clocks;
mod endpoints;
mod heart;
mod locks;
mod order;
mod quotas;
mod scripted;

use std::{sync::Arc, time::Duration};

use postrider_core::retry::Policy;
use postrider_engine::transport::Transport;
use postrider_testkit::{
    clock::FakeClock,
    postgres::Database,
    receiver::{Receiver, Request},
    running::{Options, Running, loopback_http},
    scenario::{Application, Endpoint, NewEndpoint, Scenario, Tenant},
};
use sqlx::PgPool;

/// Tasks of an engine that sleep by its clock while nothing happens: the taker before the first beat, the scout after its
/// first look, the heart after its first beat, seven maintenance jobs after their first pass, the observer of the database
/// and what tidies connections.
const SLEEPERS: usize = 12;
/// The taker looks again after this time at the latest, and so does most else.
const STEP: Duration = Duration::from_millis(50);

/// A database, a receiver, a tenant, and no engine yet.
struct World {
    database: Database,
    receiver: Receiver,
    tenant: Tenant,
    clock: FakeClock,
}

impl World {
    async fn new() -> Self {
        let (database, receiver) = (Database::fresh().await, Receiver::start().await);
        let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
        Self { database, receiver, tenant, clock: FakeClock::default() }
    }

    fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    /// An endpoint and an application of the same name that sends it everything.
    async fn pair(&self, name: &str) -> (Application, Endpoint) {
        self.pair_with(name, |endpoint| endpoint).await
    }

    async fn pair_with(
        &self,
        name: &str,
        describe: impl FnOnce(NewEndpoint<'_>) -> NewEndpoint<'_>,
    ) -> (Application, Endpoint) {
        let application = self.tenant.application(name).await;
        let url = self.receiver.url(&format!("/{name}"));
        let endpoint = describe(self.tenant.endpoint(name, &url).retry(Policy::DEFAULT)).create().await;
        application.sends(&["*"], &endpoint).await;
        (application, endpoint)
    }

    /// An engine on the test's clock. Its taker waits for that to move; everything else has had its first turn.
    async fn start(&self) -> Running {
        self.start_with(loopback_http(), Options::default()).await
    }

    async fn start_with(&self, transport: impl Transport, options: Options) -> Running {
        let options = Options { clock: Arc::new(self.clock.clone()), ..options };
        let engine = Running::start_with(&self.database, transport, options);
        self.clock.sleepers(SLEEPERS).await;
        engine.until_the_broker_is_used().await;
        engine
    }

    /// Asks until a count is reached; no time of the engine's passes. The test runner's limit bounds it.
    async fn wait_until(&self, query: &'static str, expected: i64) {
        while self.count(query).await != expected {
            tokio::task::yield_now().await;
        }
    }

    /// Lets the engine's time pass, step by step, until a count is reached. Not for what waits by PostgreSQL's clock, such
    /// as a lock's timeout: the engine's would run ahead of it.
    async fn pass_until(&self, query: &'static str, expected: i64) {
        while self.count(query).await != expected {
            self.clock.advance(STEP);
        }
    }

    /// The same until the receiver has so many requests.
    async fn pass_until_received(&self, count: usize) -> Vec<Request> {
        while self.receiver.requests().len() < count {
            self.clock.advance(STEP);
            // The engine answers to its database, so a look there gives it time.
            self.count("SELECT count(*) FROM postrider.delivery_queue").await;
        }
        self.receiver.requests()
    }

    async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(self.pool()).await.expect("the database answers")
    }

    async fn execute(&self, statement: &'static str) {
        sqlx::query(statement).execute(self.pool()).await.expect("the statement runs");
    }

    /// Returns when so many sessions of this database wait for a lock.
    async fn wait_for_waiting(&self, expected: i64) {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND wait_event_type = 'Lock'";
        self.wait_until(waiting, expected).await;
    }
}

const DELIVERED: &str = "SELECT count(*) FROM postrider.deliveries WHERE outcome = 'delivered'";
const IN_FLIGHT: &str = "SELECT count(*) FROM postrider.delivery_queue WHERE state = 'in_flight'";

/// What the other tests stand on: when so many sleep, everything has had its turn, and nobody else is to come.
#[tokio::test]
async fn an_engine_at_rest_has_these_sleepers() {
    let world = World::new().await;
    let engine = world.start().await;
    assert_eq!(world.count("SELECT count(*) FROM postrider.instances").await, 1, "it has registered");
    let more = tokio::time::timeout(Duration::from_millis(500), world.clock.sleepers(SLEEPERS + 1)).await;
    assert!(more.is_err(), "another task sleeps: count it in `SLEEPERS`");
    drop(engine);
}
