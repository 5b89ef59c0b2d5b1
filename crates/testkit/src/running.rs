//! An engine that runs in the test's own process, as `serve` runs it.

use std::{sync::Arc, time::Duration};

use postrider_broker::rabbit::{self, Address, RabbitMq};
use postrider_core::{address, destination::UrlPolicy, limiter::Limiter, queue::Queue};
use postrider_engine::{
    clock::{Clock, SystemClock},
    directory,
    engine::{self, Entrance},
    maintenance::upkeep::CleanUp,
    supervisor::{self, Shutdown, Supervisor},
    transport::{self, Http, Transport},
};
use postrider_store::{
    ingest::{Accepted, NewEvent, Refusal, Submission},
    instances::Role,
    routing::Cache,
};
use sqlx::postgres::PgConnectOptions;
use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    postgres::Database,
    scenario::{Application, keyring},
};

/// Longest drain before a test gives up on it.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// Between two looks whether the broker is used.
const POLL: Duration = Duration::from_millis(5);

/// What a test may choose.
#[derive(Debug, Clone)]
pub struct Options {
    pub role: Role,
    /// Requests in flight at once.
    pub concurrency: u16,
    pub clock: Arc<dyn Clock>,
    /// Where the engine's own connections go; the database's own URL unless set.
    pub direct_url: Option<String>,
    /// The URL of a broker to be used beside the table; that of the database unless set.
    pub broker: Option<String>,
    /// Limits that other engines share.
    pub limiter: Option<Arc<dyn Limiter>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            role: Role::All,
            concurrency: 64,
            clock: Arc::new(SystemClock::new()),
            direct_url: None,
            broker: None,
            limiter: None,
        }
    }
}

/// A running engine. Dropping it ends its tasks at once, as a crash would, save that nothing already sent is undone.
#[derive(Debug)]
pub struct Running {
    entrance: Option<Entrance>,
    routing: Arc<Cache>,
    broker: Option<Arc<RabbitMq>>,
    shutdown: Shutdown,
    task: JoinSet<Result<(), supervisor::Error>>,
}

impl Running {
    /// With real HTTP, to loopback receivers.
    pub fn start(database: &Database) -> Self {
        Self::start_with(database, loopback_http(), Options::default())
    }

    pub fn start_with(database: &Database, transport: impl Transport, options: Options) -> Self {
        let mut supervisor = Supervisor::new(Shutdown::default());
        let shutdown = supervisor.shutdown().clone();
        let pool = database.serving_pool().clone();
        let routing = Arc::new(Cache::new(pool.clone()));
        let connections: PgConnectOptions =
            options.direct_url.as_deref().unwrap_or(database.url()).parse().expect("a database URL");
        let broker = options
            .broker
            .as_deref()
            .or(database.broker_url())
            .map(|url| start_broker(url, &options, connections.clone(), &mut supervisor));
        let settings = engine::Settings {
            role: options.role,
            host: "test".to_owned(),
            options: connections,
            routing: Arc::clone(&routing),
            pool,
            clock: Arc::clone(&options.clock),
            transport,
            queue: broker.clone().map(|broker| -> Arc<dyn Queue> { broker }),
            limiter: options.limiter,
            concurrency: options.concurrency,
            directory: directory::Settings {
                keyring: keyring(),
                url_policy: UrlPolicy { allow_query: false, allow_loopback_http: true },
                address_policy: loopback_policy(),
            },
            seed: 7,
            clean_up: CleanUp::Upkeep,
        };
        let entrance = engine::start(settings, &mut supervisor);
        let clock = options.clock;
        let mut task = JoinSet::new();
        task.spawn(async move { supervisor.run(&*clock, DRAIN_LIMIT).await });
        Self { entrance, routing, broker, shutdown, task }
    }

    /// Where events enter; panics where the role takes none. The drain waits until the last clone is dropped.
    pub fn entrance(&self) -> Entrance {
        self.entrance.clone().expect("this role takes events")
    }

    /// The plans in memory, which publishers are let in by.
    pub const fn routing(&self) -> &Arc<Cache> {
        &self.routing
    }

    /// Returns once the broker is used, at once where there is none. Until then what is published is in the outbox and known
    /// to the taker.
    pub async fn until_the_broker_is_used(&self) {
        while self.broker.as_ref().is_some_and(|broker| !broker.is_up()) {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Publishes as the API does.
    pub async fn publish(&self, application: &Application, event: NewEvent) -> Result<Accepted, Refusal> {
        let (reply, answer) = oneshot::channel();
        let routing = application.routing().await;
        let entrance = self.entrance.as_ref().expect("this role takes events");
        entrance.send(Submission { routing, event, reply }).await.expect("the engine runs");
        answer.await.expect("every submission is answered")
    }

    /// Ends in order; panics where a task failed.
    pub async fn drain(mut self) {
        self.shutdown.drain();
        self.entrance = None;
        let ended = self.task.join_next().await.expect("the supervisor was started");
        ended.expect("the supervisor does not panic").expect("the engine ends well");
    }
}

fn start_broker(
    url: &str,
    options: &Options,
    connections: PgConnectOptions,
    supervisor: &mut Supervisor,
) -> Arc<RabbitMq> {
    let sends_at_once = match options.role {
        Role::Worker | Role::All => Some(options.concurrency),
        Role::Api => None,
    };
    let broker = RabbitMq::new(rabbit::Settings {
        address: Address::new(url, None).expect("the URL of a broker"),
        options: connections,
        sends_at_once,
        draining: supervisor.shutdown().draining_token(),
    });
    for (name, task) in broker.tasks() {
        supervisor.start(name, task);
    }
    broker
}

/// The product's transport, allowed to reach loopback receivers.
pub fn loopback_http() -> Http {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let roots = rustls::RootCertStore::empty();
    let settings = transport::Settings::of_the_system(loopback_policy(), roots, clock);
    Http::new(settings).expect("an empty set of authorities is a valid one")
}

fn loopback_policy() -> address::Policy {
    address::Policy { allow_loopback: true, ..address::Policy::default() }
}
