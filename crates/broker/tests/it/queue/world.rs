//! One endpoint that gets everything of one application, and engines over a queue of the test's choice.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use postrider_broker::rabbit::{Address, RabbitMq, Settings};
use postrider_core::{queue::Queue as _, retry::Policy};
use postrider_store::instances::{self, Role};
use postrider_testkit::{
    ledger::{Accepted, Expectation, Ledger, Report},
    postgres::Database,
    rabbitmq::Broker,
    receiver::Receiver,
    running::{Options, Running, loopback_http},
    scenario::{Application, Endpoint, Scenario, Tenant, new_event},
};
use tokio_util::sync::CancellationToken;

/// Longest wait for something that is about to happen.
const PATIENCE: Duration = Duration::from_secs(40);

/// The queue under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The table alone.
    Table,
    /// RabbitMQ beside it.
    RabbitMq,
}

pub(crate) struct World {
    pub(crate) database: Database,
    pub(crate) broker: Option<Broker>,
    pub(crate) receiver: Receiver,
    pub(crate) tenant: Tenant,
    pub(crate) application: Application,
    pub(crate) endpoint: Endpoint,
    ledger: Mutex<Ledger>,
}

impl World {
    pub(crate) async fn new(mode: Mode) -> Self {
        Self::with_retry(mode, Policy::DEFAULT).await
    }

    pub(crate) async fn with_retry(mode: Mode, retry: Policy) -> Self {
        let broker = match mode {
            Mode::Table => None,
            Mode::RabbitMq => Some(Broker::shared_vhost().await),
        };
        Self::over(broker, retry).await
    }

    pub(crate) async fn over(broker: Option<Broker>, retry: Policy) -> Self {
        let (database, receiver) = (Database::fresh().await, Receiver::start().await);
        let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
        let application = tenant.application("orders").await;
        let endpoint = tenant.endpoint("warehouse", &receiver.url("/")).retry(retry).create().await;
        application.sends(&["*"], &endpoint).await;
        Self { database, broker, receiver, tenant, application, endpoint, ledger: Mutex::default() }
    }

    /// An engine over the queue under test.
    pub(crate) fn engine(&self, role: Role) -> Running {
        self.engine_at(role, self.broker.as_ref().map(Broker::url))
    }

    /// The same, with another way to the broker.
    pub(crate) fn engine_at(&self, role: Role, broker: Option<String>) -> Running {
        let options = Options { role, broker, ..Options::default() };
        Running::start_with(&self.database, loopback_http(), options)
    }

    /// The broker's side of a process, without an engine: its tasks are the test's to start.
    pub(crate) fn client(&self, sends_at_once: Option<u16>) -> Arc<RabbitMq> {
        self.client_until(sends_at_once, CancellationToken::new())
    }

    /// The same, until a drain.
    pub(crate) fn client_until(
        &self,
        sends_at_once: Option<u16>,
        draining: CancellationToken,
    ) -> Arc<RabbitMq> {
        let broker = self.broker.as_ref().expect("a broker");
        RabbitMq::new(Settings {
            address: Address::new(&broker.url(), None).expect("the URL of a broker"),
            options: self.database.url().parse().expect("a database URL"),
            sends_at_once,
            draining,
        })
    }

    /// Ends an engine as a crash would. Then others are told at once that it is dead, which they would find out by watching
    /// its heart stand still.
    pub(crate) async fn crash(&self, engine: Running) {
        drop(engine);
        self.declare_owners_dead().await;
    }

    /// Tells all processes that those are dead which hold deliveries.
    pub(crate) async fn declare_owners_dead(&self) {
        let mut connection = self.database.pool().acquire().await.expect("a connection");
        let owners: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT lease_owner FROM postrider.delivery_queue")
            .fetch_all(&mut *connection)
            .await
            .expect("the leases stand");
        let hearts = instances::hearts(&mut connection).await.expect("the hearts can be read");
        let dead: Vec<_> =
            hearts.into_iter().filter(|heart| owners.contains(&heart.instance_id.as_uuid())).collect();
        assert!(!dead.is_empty(), "it held nothing");
        instances::declare_dead(&mut connection, &dead).await.expect("it is declared dead");
    }

    /// Publishes so many events through an engine.
    pub(crate) async fn publish(&self, engine: &Running, count: usize) {
        for number in 0..count {
            let body = format!("{{\"number\":{number}}}");
            let event = new_event("order.created", body.clone(), None);
            let accepted = engine.publish(&self.application, event).await.expect("the event is accepted");
            self.ledger.lock().expect("no test panics in between").accepted.push(Accepted {
                event_id: accepted.event_id,
                key: None,
                deliveries: accepted.deliveries,
                body: body.into(),
            });
        }
    }

    /// Waits until everything has ended, and checks the ledgers.
    pub(crate) async fn check(&self) -> Report {
        self.wait_for_count("SELECT count(*) FROM postrider.delivery_queue", 0).await;
        let ledger = self.ledger.lock().expect("no test panics in between").clone();
        let expectation = Expectation { poll: Duration::from_secs(1), everything_ended: true };
        ledger.with_receiver(&self.receiver).check(self.database.pool(), expectation).await
    }

    /// How many requests were sent in vain: the same delivery once more, though the receiver had it.
    pub(crate) fn repeats(&self) -> usize {
        let mut seen = BTreeMap::<String, usize>::new();
        for request in self.receiver.requests() {
            *seen.entry(request.webhook_id().to_owned()).or_default() += 1;
        }
        seen.values().map(|count| count - 1).sum()
    }

    pub(crate) async fn wait_for_count(&self, query: &'static str, expected: i64) {
        let mut found = None;
        let waited = tokio::time::timeout(PATIENCE, async {
            while found != Some(expected) {
                found = Some(self.count(query).await);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        assert!(waited.await.is_ok(), "{query}: {found:?}, not {expected}");
    }

    pub(crate) async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(self.database.pool()).await.expect("the database answers")
    }

    /// Waits until so many messages wait in a queue of the broker, none of them with a consumer.
    pub(crate) async fn wait_for_depth(&self, queue: &str, expected: u64) {
        let broker = self.broker.as_ref().expect("a broker");
        let mut found = None;
        let waited = tokio::time::timeout(PATIENCE, async {
            loop {
                let depth = broker.depths().await.get(queue).copied().unwrap_or_default();
                found = Some(depth);
                if (depth.ready, depth.unacknowledged) == (expected, 0) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        assert!(waited.await.is_ok(), "{queue}: {found:?}, not {expected}");
    }
}

/// Waits until a process takes the broker for one that can be used.
pub(crate) async fn wait_until_up(client: &RabbitMq) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !client.is_up() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(waited.await.is_ok(), "the broker is not used");
}
