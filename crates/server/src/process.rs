//! Wires database, engine and HTTP surface into one process.
//!
//! Invariant: whatever is needed to work is proven before the process says it listens: the database answers, its schema
//! is this program's, pepper and encryption key are the installation's, the certificate authorities can be read.

mod broker;
mod database;
mod redis;
mod tokens;

use std::{fmt, fs, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use axum::Router;
use clap::ValueEnum;
use postrider_api::{
    OptionalDependency, State, authenticate::OperatorToken, health_router, refusals::Refusals, router,
};
use postrider_broker::{rabbit::RabbitMq, redis::Redis};
use postrider_core::{address, destination::UrlPolicy, limiter::Limiter, queue::Queue};
use postrider_engine::{
    backlog,
    clock::Clock,
    directory,
    engine::{self, Entrance},
    maintenance::upkeep::CleanUp,
    supervisor::{Shutdown, Supervisor},
    transport::{self, Guard, Http, roots},
};
use postrider_store::{backlog::Gate, installation, instances, routing::Cache};
use sqlx::{PgPool, postgres::PgConnectOptions};
use tokio::{net::TcpListener, sync::mpsc};

use crate::{
    build::BUILD,
    configuration::{Configuration, Deliveries, Secret},
    listener, random, telemetry,
};

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Accept events and deliver them
    All,
    /// Accept events
    Api,
    /// Deliver events
    Worker,
}

/// What a process is made of.
pub(crate) struct Parts {
    pub(crate) configuration: Configuration,
    pub(crate) role: Role,
    /// Bound already, so that a taken port is known before anything else is started.
    pub(crate) listener: TcpListener,
    pub(crate) shutdown: Shutdown,
    pub(crate) clock: Arc<dyn Clock>,
}

/// A running process.
pub(crate) struct Process {
    supervisor: Supervisor,
    clock: Arc<dyn Clock>,
    pool: PgPool,
}

impl Process {
    pub(crate) async fn start(parts: Parts) -> anyhow::Result<Self> {
        let (pool, options) = database::open(&parts.configuration.database).await?;
        let started = Self::start_on(pool.clone(), options, parts).await;
        if started.is_err() {
            // A database that `dev` stops next would end the connections under the pool, which then complains of it.
            pool.close().await;
        }
        started
    }

    async fn start_on(pool: PgPool, options: PgConnectOptions, parts: Parts) -> anyhow::Result<Self> {
        let Parts { configuration, role, listener, shutdown, clock } = parts;
        let metrics = telemetry::start_metrics()?;
        database::prove_wall(&pool).await?;
        installation::prove_pepper(&pool, &configuration.secrets.peppers).await?;
        installation::prove_encryption_key(&pool, &configuration.secrets.keyring).await?;
        let routing = Arc::new(Cache::with_defaults(pool.clone(), configuration.limits.tenants));
        let mut supervisor = Supervisor::new(shutdown.clone());

        let address = listener.local_addr()?;
        let broker = broker::start(&configuration, role, &options, &mut supervisor);
        let redis = redis::start(&configuration, &clock, &mut supervisor).await?;
        let wiring = Wiring {
            pool: &pool,
            routing: &routing,
            clock: &clock,
            configuration: &configuration,
            broker: broker.as_ref(),
            redis: redis.as_ref(),
        };
        let engine = wiring.engine(role, options)?;
        // The one that deliveries pass, so that a URL is saved by the rules it is sent to by.
        let guard = Arc::clone(engine.transport.guard());
        let gate = Arc::<Gate>::default();
        let has_broker = engine.queue.is_some();
        let watch = configuration.limits.backlog;
        let watch = watch.map(|limit| backlog::Settings { limit, gate: Arc::clone(&gate), has_broker });
        let direct = engine.options.clone();
        let entrance = engine::start(engine, &mut supervisor);
        if let Some(watch) = watch.filter(|_| entrance.is_some()) {
            supervisor.start("backlog", backlog::run(watch, direct, Arc::clone(&clock), shutdown.clone()));
        }
        let upkeep = metrics.clone();
        supervisor.start(
            "metrics",
            telemetry::keep_up(move || upkeep.run_upkeep(), Arc::clone(&clock), shutdown.clone()),
        );
        let render_metrics = Arc::new(move || metrics.render());
        let (refusals, waiting) = Refusals::new();
        supervisor.start("audit", waiting.write(pool.clone()));
        let peppers = &configuration.secrets.peppers;
        if peppers.previous().is_some() {
            let (routing, clock) = (Arc::clone(&routing), Arc::clone(&clock));
            let follow = tokens::keep_up(routing, peppers.current(), clock, shutdown.clone());
            supervisor.start("tokens", follow);
        }
        let gates = Gates { entrance, gate, guard, refusals };
        let surface = wiring.surface(gates, render_metrics, shutdown.clone());
        supervisor.start("http", listener::serve(listener, surface, shutdown));
        announce(role, address);
        Ok(Self { supervisor, clock, pool })
    }

    /// Runs until the drain has ended or a task has died; the latter is an error.
    pub(crate) async fn run(self, drain_limit: Duration) -> anyhow::Result<()> {
        let ended = self.supervisor.run(self.clock.as_ref(), drain_limit).await;
        self.pool.close().await;
        if ended.is_ok() {
            tracing::info!("drained; bye");
        }
        Ok(ended?)
    }
}

/// What both the engine and the HTTP surface stand on.
struct Wiring<'a> {
    pool: &'a PgPool,
    routing: &'a Arc<Cache>,
    clock: &'a Arc<dyn Clock>,
    configuration: &'a Configuration,
    /// What announces deliveries beside the table.
    broker: Option<&'a Arc<RabbitMq>>,
    /// Where limits are shared.
    redis: Option<&'a Arc<Redis>>,
}

/// What the HTTP surface uses of the engine.
struct Gates {
    /// `None` where the role takes no events.
    entrance: Option<Entrance>,
    gate: Arc<Gate>,
    guard: Arc<Guard>,
    refusals: Refusals,
}

impl Wiring<'_> {
    fn engine(&self, role: Role, options: PgConnectOptions) -> anyhow::Result<engine::Settings<Http>> {
        let deliveries = &self.configuration.deliveries;
        let roots =
            roots(deliveries.extra_authorities_pem.as_deref()).context("POSTRIDER_CA_FILE cannot be used")?;
        let transport =
            transport::Settings::of_the_system(address_policy(deliveries), roots, Arc::clone(self.clock));
        let directory = directory::Settings {
            keyring: Arc::clone(&self.configuration.secrets.keyring),
            url_policy: url_policy(deliveries),
            address_policy: address_policy(deliveries),
        };
        Ok(engine::Settings {
            role: role.into(),
            host: host_name(),
            options,
            pool: self.pool.clone(),
            routing: Arc::clone(self.routing),
            clock: Arc::clone(self.clock),
            transport: Http::new(transport)?,
            queue: self.queue(),
            limiter: self.limiter(),
            concurrency: self.configuration.worker.concurrency,
            directory,
            seed: u64::from_ne_bytes(random::bytes()?),
            clean_up: CleanUp::Upkeep,
        })
    }

    /// What it uses and can do without.
    fn optional(&self) -> Vec<OptionalDependency> {
        let broker = self.broker.map(broker::dependency);
        broker.into_iter().chain(self.redis.map(redis::dependency)).collect()
    }

    fn queue(&self) -> Option<Arc<dyn Queue>> {
        self.broker.map(|broker| -> Arc<dyn Queue> { Arc::<RabbitMq>::clone(broker) })
    }

    fn limiter(&self) -> Option<Arc<dyn Limiter>> {
        self.redis.map(|redis| -> Arc<dyn Limiter> { Arc::<Redis>::clone(redis) })
    }

    fn surface(
        &self,
        Gates { entrance, gate, guard, refusals }: Gates,
        render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
        shutdown: Shutdown,
    ) -> Router {
        let (deliveries, secrets) = (&self.configuration.deliveries, &self.configuration.secrets);
        let token = |secret: &Secret| OperatorToken::from(secret.reveal());
        let (clock, monotonic) = (Arc::clone(self.clock), Arc::clone(self.clock));
        let accepts_events = entrance.is_some();
        let settings = postrider_api::Settings {
            pool: self.pool.clone(),
            routing: Arc::clone(self.routing),
            // A worker has no entrance and serves no operation that would use one.
            ingest: entrance.unwrap_or_else(|| mpsc::channel(1).0.into()),
            keyring: Arc::clone(&secrets.keyring),
            peppers: secrets.peppers.clone(),
            sessions: self.configuration.sessions.keys.clone(),
            refusals,
            trusted_proxies: self.configuration.http.trusted_proxies.clone(),
            bootstrap_token: secrets.bootstrap_token.as_ref().map(token),
            metrics_token: secrets.metrics_token.as_ref().map(token),
            url_policy: url_policy(deliveries),
            address_policy: address_policy(deliveries),
            check_origin: Arc::new(move |origin| {
                let guard = Arc::clone(&guard);
                Box::pin(async move { guard.check(&origin).await })
            }),
            render_metrics,
            build: BUILD,
            now: Arc::new(move || clock.now()),
            monotonic: Arc::new(move || monotonic.monotonic()),
            limiter: self.limiter(),
            queue: self.queue(),
            optional: self.optional(),
            max_requests_in_flight: self.configuration.limits.max_requests_in_flight,
            gate,
            is_draining: Arc::new(move || shutdown.is_draining()),
        };
        let state = State::from(settings);
        if accepts_events { router(state) } else { health_router(state) }
    }
}

impl fmt::Display for Role {
    /// As the command line writes it.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(instances::Role::from(*self).as_str())
    }
}

impl From<Role> for instances::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::All => Self::All,
            Role::Api => Self::Api,
            Role::Worker => Self::Worker,
        }
    }
}

fn announce(role: Role, address: SocketAddr) {
    tracing::info!(%role, %address, version = BUILD.version, commit = BUILD.commit, "listening");
}

pub(crate) fn address_policy(deliveries: &Deliveries) -> address::Policy {
    address::Policy { allowed: deliveries.allowed_cidrs.clone(), allow_loopback: deliveries.allow_loopback }
}

pub(crate) fn url_policy(deliveries: &Deliveries) -> UrlPolicy {
    UrlPolicy { allow_query: false, allow_loopback_http: deliveries.allow_loopback }
}

/// This machine's name, for the list of processes; where the system does not tell, that is said.
fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
