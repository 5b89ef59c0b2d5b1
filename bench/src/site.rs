//! One measurement's place: a database, server processes, a tenant with its endpoints, a sink, and a ledger.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};

use crate::{
    clock,
    figures::Figures,
    load::{
        generator::{Load, Pace, Sent},
        latency::Latency,
        ledger::{Ledger, Since},
        message::Target,
        sink::Sink,
    },
    rate,
    stage::{self, Database, EVERY_TYPE, Machine, Memory, Owner, Role, Server, Stage},
};

/// Events that are published and delivered before anything is measured: caches, connections and plans exist then, as
/// they do on a system that has run for a minute.
pub(crate) const WARM_UP_EVENTS: u32 = 5_000;

/// The tenant whose events are measured.
pub(crate) const MEASURED_TENANT: &str = "acme";

/// Longest time without a single receipt before a measurement is given up.
const STALL_LIMIT_NS: u64 = 30_000_000_000;
/// Longest time for the last results to be written.
pub(crate) const SETTLE_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(2);

/// What a measurement needs; by default no broker, a sink that answers at once, and workers as they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// The processes; events are published to the first.
    pub(crate) roles: &'static [Role],
    /// The measured tenant's endpoints, each of which gets every event of it.
    pub(crate) endpoints: u16,
    pub(crate) connections: u16,
    /// Events of all measurements and tenants; those of one warm-up come on top.
    pub(crate) events: u32,
    /// Whether deliveries are announced through RabbitMQ.
    pub(crate) with_broker: bool,
    /// Where the sink's endpoints are.
    pub(crate) path: &'static str,
    /// Requests that each worker may have in flight, if not as many as by default.
    pub(crate) concurrency: Option<u16>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            roles: &[Role::All],
            endpoints: 1,
            connections: 1,
            events: 0,
            with_broker: false,
            path: "ok",
            concurrency: None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Site {
    shape: Shape,
    database: Database,
    servers: Vec<Server>,
    sink: Sink,
    ledger: Arc<Ledger>,
    target: Target,
    /// The number of the next event, whoever publishes it.
    next: u32,
    /// Events of the measured tenant.
    published: u32,
    /// Deliveries of that tenant which had ended before the first of them.
    delivered_before: u64,
}

/// CPU seconds used so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    at_ns: u64,
    machine: Machine,
    server_s: f64,
    postgres_s: f64,
    broker_s: f64,
}

impl Site {
    /// Sets everything up and warms it up.
    pub(crate) async fn open(stage: &mut Stage, shape: Shape) -> anyhow::Result<Self> {
        let mut site = Self::raise(stage, shape).await?;
        site.warm_up(stage).await?;
        Ok(site)
    }

    /// Sets everything up, cold.
    pub(crate) async fn raise(stage: &mut Stage, shape: Shape) -> anyhow::Result<Self> {
        let database = stage.database().await?;
        let settings = Self::settings(stage, shape).await?;
        let mut servers = Vec::new();
        for role in shape.roles {
            servers.push(Server::start(stage, &database, *role, &settings).await?);
        }
        let entrance = servers.first().context("a measurement needs a server")?.address;
        let ledger = Arc::new(Ledger::new(WARM_UP_EVENTS + shape.events, shape.endpoints));
        let sink = Sink::start(Arc::clone(&ledger))?;
        let owner = Owner::of_new_tenant(entrance, MEASURED_TENANT).await?;
        let target = owner.application().await?;
        for endpoint in 0..shape.endpoints {
            let url = format!("http://{}/{}/{endpoint}", sink.address, shape.path);
            owner.endpoint(&format!("endpoint-{endpoint}"), &url, EVERY_TYPE).await?;
        }
        let (next, published, delivered_before) = (0, 0, 0);
        Ok(Self { shape, database, servers, sink, ledger, target, next, published, delivered_before })
    }

    async fn settings(stage: &mut Stage, shape: Shape) -> anyhow::Result<Vec<(&'static str, String)>> {
        let mut settings = Vec::new();
        if shape.with_broker {
            settings.push(("POSTRIDER_RABBITMQ_URL", stage.broker_url().await?));
        }
        if let Some(concurrency) = shape.concurrency {
            settings.push(("POSTRIDER_WORKER_CONCURRENCY", concurrency.to_string()));
        }
        Ok(settings)
    }

    /// Publishes the events of the warm-up, checks them, and has everything written out.
    pub(crate) async fn warm_up(&mut self, stage: &mut Stage) -> anyhow::Result<()> {
        self.publish(WARM_UP_EVENTS, Pace::Closed).await?;
        self.settled().await?;
        self.verify().await?;
        stage.checkpoint().await
    }

    /// Publishes events, waits until they are delivered, and finds out everything about them.
    pub(crate) async fn measure(
        &mut self,
        stage: &Stage,
        events: u32,
        pace: Pace,
    ) -> anyhow::Result<Figures> {
        let measured = self.next..self.next + events;
        let before = self.used(stage)?;
        let sent = self.publish(events, pace).await?;
        self.settled().await?;
        let after = self.used(stage)?;
        self.verify().await?;

        let deliveries = u64::from(events) * u64::from(self.shape.endpoints);
        let per_delivery_ms = |seconds: f64| Some(1e3 * seconds / rate::real(deliveries));
        let memory = self.memory()?;
        Ok(Figures {
            deliveries,
            per_second: Some(rate::per_second(deliveries, sent.began_ns, self.ledger.last_received_ns())),
            from_due: self.ledger.latency(measured.clone(), Since::Due)?,
            from_accepted: self.ledger.latency(measured.clone(), Since::Accepted)?,
            answer: self.ledger.answer_latency(measured)?,
            late: sent.late,
            latest_ms: rate::real(sent.latest_ns) / 1e6,
            server_cpu_ms: per_delivery_ms(after.server_s - before.server_s),
            postgres_cpu_ms: per_delivery_ms(after.postgres_s - before.postgres_s),
            machine_percent: Some(after.machine.busy_percent_since(before.machine)),
            peak_mib: Some(memory.peak_mib),
            resident_mib: Some(memory.resident_mib),
            repeated: self.ledger.repeated(),
            broker_cpu_ms: per_delivery_ms(after.broker_s - before.broker_s)
                .filter(|_| self.shape.with_broker),
            ..Figures::default()
        })
    }

    /// Publishes events of another tenant, on connections and a thread of their own. Nobody waits for their deliveries.
    pub(crate) fn publish_aside(
        &mut self,
        targets: Vec<Target>,
        events: u32,
        pace: Pace,
    ) -> impl Future<Output = anyhow::Result<Sent>> + use<> {
        let load = Load { targets, connections: self.shape.connections, first: self.next, events, pace };
        self.next += events;
        load.run(Arc::clone(&self.ledger))
    }

    /// From the `202` to the receipt, for the measured tenant's last `events`.
    pub(crate) fn latest_latency(&self, events: u32) -> anyhow::Result<Option<Latency>> {
        self.ledger.latency(self.next.saturating_sub(events)..self.next, Since::Accepted)
    }

    /// Another tenant.
    pub(crate) async fn tenant(&self, name: &str) -> anyhow::Result<Owner> {
        Owner::of_new_tenant(self.entrance()?, name).await
    }

    /// Gives the measured tenant limits.
    pub(crate) async fn limit(&self, limits: &serde_json::Value) -> anyhow::Result<()> {
        stage::limit(self.entrance()?, MEASURED_TENANT, limits).await
    }

    /// Where a path of the sink is.
    pub(crate) fn sink_url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.sink.address)
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    pub(crate) const fn database(&mut self) -> &mut Database {
        &mut self.database
    }

    /// Takes what is in the history by now for given.
    pub(crate) async fn begin_after_history(&mut self) -> anyhow::Result<()> {
        self.delivered_before = self.database.delivered(MEASURED_TENANT).await?;
        Ok(())
    }

    /// CPU seconds of servers and database up to now.
    pub(crate) fn used(&self, stage: &Stage) -> anyhow::Result<Used> {
        let mut server_s = 0.0;
        for server in &self.servers {
            server_s += stage::cpu_s(server.pid)?;
        }
        let postgres_s = stage::family_cpu_s(stage.postmaster()?)?;
        let broker_s = if self.shape.with_broker { stage.broker_cpu_s()? } else { 0.0 };
        Ok(Used { at_ns: clock::now_ns(), machine: Machine::now()?, server_s, postgres_s, broker_s })
    }

    /// The largest of the server processes.
    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        let mut largest = Memory { resident_mib: 0.0, peak_mib: 0.0 };
        for server in &self.servers {
            let memory = stage::memory(server.pid)?;
            largest.resident_mib = largest.resident_mib.max(memory.resident_mib);
            largest.peak_mib = largest.peak_mib.max(memory.peak_mib);
        }
        Ok(largest)
    }

    /// Ends the processes and drops the database; returns the database time per delivery of all that was delivered.
    pub(crate) async fn close(self, stage: &mut Stage, statements: bool) -> anyhow::Result<f64> {
        for server in self.servers {
            server.stop().await?;
        }
        drop(self.sink);
        let database_ms = stage.database_ms(&self.database).await?;
        if statements {
            stage.print_statements(&self.database).await?;
        }
        stage.discard(self.database).await?;
        Ok(database_ms / rate::real(self.ledger.received()))
    }

    fn entrance(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.servers.first().context("a measurement needs a server")?.address)
    }

    /// Publishes events of the measured tenant.
    async fn publish(&mut self, events: u32, pace: Pace) -> anyhow::Result<Sent> {
        let sent = self.publish_aside(vec![self.target.clone()], events, pace).await?;
        self.published += events;
        Ok(sent)
    }

    /// Deliveries of the measured tenant.
    fn expected(&self) -> u64 {
        u64::from(self.published) * u64::from(self.shape.endpoints)
    }

    /// Waits until all that was published is received by every endpoint and no delivery of it is open.
    async fn settled(&mut self) -> anyhow::Result<()> {
        self.received(self.expected()).await?;
        let emptied = async {
            while self.database.open_deliveries(MEASURED_TENANT).await? > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(SETTLE_LIMIT, emptied).await.context("the queue does not get empty")?
    }

    /// Fails unless what was accepted, what was received and what is recorded are the same.
    async fn verify(&mut self) -> anyhow::Result<()> {
        let expected = self.expected();
        let delivered = self.database.delivered(MEASURED_TENANT).await? - self.delivered_before;
        ensure!(
            delivered == expected && self.ledger.received() == expected,
            "{expected} deliveries were accepted, {} received, {delivered} recorded as delivered",
            self.ledger.received(),
        );
        ensure!(self.ledger.unknown() == 0, "{} requests came that nobody asked for", self.ledger.unknown());
        Ok(())
    }

    async fn received(&self, expected: u64) -> anyhow::Result<()> {
        let (mut seen, mut seen_at_ns) = (0, clock::now_ns());
        loop {
            let received = self.ledger.received();
            if received >= expected {
                return Ok(());
            }
            let now_ns = clock::now_ns();
            if received > seen {
                (seen, seen_at_ns) = (received, now_ns);
            } else if now_ns - seen_at_ns > STALL_LIMIT_NS {
                bail!(
                    "{expected} deliveries were accepted, but only {received} received; nothing came for 30 s"
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Used {
    /// CPU time by wall time since `before`, in per cent of one core: of the servers, and of PostgreSQL.
    pub(crate) fn percent_since(self, before: Self) -> (f64, f64) {
        let wall_s = rate::real(self.at_ns - before.at_ns) / 1e9;
        let percent = |seconds: f64| 100.0 * seconds / wall_s;
        (percent(self.server_s - before.server_s), percent(self.postgres_s - before.postgres_s))
    }
}
