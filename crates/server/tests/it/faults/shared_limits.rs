//! Two workers whose limits are shared through Redis: together they send no faster and no more at once than one alone
//! might, whatever becomes of Redis meanwhile, and whatever their clocks say.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use postrider_testkit::{
    ledger::{Ledger, Report},
    postgres::Database,
    receiver::{Answer, Receiver},
    redis::Redis,
};
use serde_json::{Value, json};

use super::{
    clocks::Clock,
    scene::{OVER, counter, until, until_nothing_is_open},
};
use crate::server::{Publisher, Server, accepted_item};

/// What the endpoint may be sent.
const PER_SECOND: u32 = 50;
const BURST: u32 = 5;
const MAX_IN_FLIGHT: usize = 4;
/// How long the receiver takes for each.
const BUSY: Duration = Duration::from_millis(40);
/// Largest batch that the API takes.
const MAX_BATCH: usize = 1_000;
const HOUR_SECONDS: i64 = 3_600;

/// When requests arrived.
#[derive(Debug, Clone, Default)]
struct Arrivals(Arc<Mutex<Vec<Instant>>>);

impl Arrivals {
    /// Notes each request, and takes its time for it.
    #[expect(clippy::disallowed_methods, reason = "a receiver's own clock judges what it gets")]
    fn at(receiver: &Receiver) -> Self {
        let arrivals = Self::default();
        let noted = arrivals.clone();
        receiver.answer_with(move |_| {
            noted.0.lock().unwrap().push(Instant::now());
            Answer::ok().late(BUSY)
        });
        arrivals
    }

    fn sorted(&self) -> Vec<Instant> {
        let mut arrivals = self.0.lock().unwrap().clone();
        arrivals.sort();
        arrivals
    }

    /// Most requests that arrived within any span of this length.
    fn most_within(&self, span: Duration) -> usize {
        let arrivals = self.sorted();
        let after = |first: Instant| arrivals.iter().filter(move |at| **at >= first && **at < first + span);
        arrivals.iter().map(|first| after(*first).count()).max().unwrap_or_default()
    }

    /// Requests in a second, without those of the beginning and the end.
    fn steady_rate(&self, without: usize) -> f64 {
        let arrivals = self.sorted();
        let (first, last) = (without, arrivals.len() - without - 1);
        let count = u32::try_from(last - first).unwrap();
        f64::from(count) / (arrivals[last] - arrivals[first]).as_secs_f64()
    }

    fn check_limits(&self) {
        let most = self.most_within(Duration::from_secs(1));
        let allowed = usize::try_from(PER_SECOND + BURST).unwrap();
        assert!(most <= allowed, "{most} within a second, where {allowed} are allowed");
        // Each was in hand at least this long.
        let at_once = self.most_within(BUSY);
        assert!(at_once <= MAX_IN_FLIGHT, "{at_once} at once, where {MAX_IN_FLIGHT} are allowed");
        println!("{most} within a second at most, {at_once} at once at most");
    }
}

/// An installation with an accepting process, two workers and a Redis, and all that was accepted.
struct World {
    database: Database,
    receiver: Receiver,
    redis: Redis,
    api: Server,
    workers: Vec<Server>,
    publisher: Publisher,
    ledger: Ledger,
}

impl World {
    /// With these variables for each worker.
    async fn new(workers: [&[(&str, &str)]; 2]) -> Self {
        let (database, receiver, redis) =
            (Database::fresh().await, Receiver::start().await, Redis::fresh().await);
        let url = redis.url();
        let shared = ("POSTRIDER_REDIS_URL", url.as_str());
        let api = Server::start_with(&database, "api", &[shared]).await;
        let publisher = api.publisher().await;
        let endpoint = json!({
            "id": "warehouse", "url": receiver.url("/"), "maxInFlight": MAX_IN_FLIGHT,
            "rateLimit": { "perSecond": PER_SECOND, "burst": BURST }, "retry": { "initialDelayMs": 1, "maxDelayMs": 1 },
        });
        publisher.manage("POST", "/endpoints", endpoint, 201).await;
        let subscription = json!({
            "id": "all", "applicationId": "orders", "endpointId": "warehouse", "eventTypes": ["*"],
        });
        publisher.manage("POST", "/subscriptions", subscription, 201).await;
        let mut running = Vec::new();
        for variables in workers {
            running.push(Server::start_with(&database, "worker", &[&[shared], variables].concat()).await);
        }
        Self { database, receiver, redis, api, workers: running, publisher, ledger: Ledger::default() }
    }

    async fn publish(&mut self, count: usize) {
        let bodies: Vec<String> = (0..count).map(|number| format!("[{number}]")).collect();
        for bodies in bodies.chunks(MAX_BATCH) {
            let results = self.publisher.publish_batch(bodies).await;
            let accepted = results.iter().zip(bodies).map(|(result, body)| accepted_item(result, body));
            self.ledger.accepted.extend(accepted);
        }
    }

    /// What `/health/ready` says of each process, and whether it shares its limits.
    async fn readiness(&self) -> Vec<(Value, u64)> {
        let mut found = Vec::new();
        for server in self.workers.iter().chain([&self.api]) {
            let ready = server.get("/health/ready").await;
            assert_eq!(ready.status, 200, "a lost Redis is no reason to send nobody here: {ready:?}");
            found.push((ready.body, counter(server.address, "postrider_shared_limits").await));
        }
        found
    }

    async fn until_all_are(&self, status: &str, shared: u64) {
        until(&format!("all are {status}"), async || {
            let is_so = |(body, gauge): &(Value, u64)| body["status"] == status && *gauge == shared;
            self.readiness().await.iter().all(is_so)
        })
        .await;
    }

    /// Waits until everything has ended, compares the books, and ends the processes.
    async fn end(self) -> Report {
        until_nothing_is_open(self.database.pool()).await;
        let report = self.ledger.with_receiver(&self.receiver).check(self.database.pool(), OVER).await;
        for server in self.workers.into_iter().chain([self.api]) {
            server.program.terminate();
            let ended = server.program.ended().await;
            assert_eq!(ended.code, Some(0), "it drains, and gives back what it has: {ended:?}");
        }
        let leases = redis::cmd("KEYS").arg("*:leases").to_owned();
        assert_eq!(self.redis.ask::<Vec<String>>(&leases).await, Vec::<String>::new(), "none is left");
        report
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_together_keep_to_what_an_endpoint_allows() {
    const DELIVERIES: usize = 2_000;
    let mut world = World::new([&[], &[]]).await;
    let arrivals = Arrivals::at(&world.receiver);
    world.publish(DELIVERIES).await;
    world.receiver.wait_for(DELIVERIES).await;
    let mut sent = Vec::new();
    for worker in &world.workers {
        sent.push(counter(worker.address, "postrider_attempts_total").await);
        let alone = counter(worker.address, "postrider_limits_in_process_total").await;
        assert_eq!(alone, 0, "Redis answered in time, always");
    }
    arrivals.check_limits();
    let rate = arrivals.steady_rate(100);
    println!("{rate:.1} in a second");
    assert!(rate >= 48.0, "only {rate:.1} in a second, where {PER_SECOND} are allowed");
    println!("sent by each worker: {sent:?}");
    assert!(sent.iter().all(|count| *count >= 200), "both work: {sent:?}");
    let report = world.end().await;
    assert_eq!((report.delivered, report.repeated_requests, report.dead_lettered), (DELIVERIES, 0, 0));
}

/// Only the clock of Redis counts.
#[tokio::test(flavor = "multi_thread")]
async fn clocks_an_hour_off_change_neither_rates_nor_leases() {
    const DELIVERIES: usize = 250;
    let (fast, slow) = (Clock::off_by(HOUR_SECONDS), Clock::off_by(-HOUR_SECONDS));
    let mut world = World::new([&fast.variables(), &slow.variables()]).await;
    let arrivals = Arrivals::at(&world.receiver);
    world.publish(DELIVERIES).await;
    world.receiver.wait_for(DELIVERIES / 2).await;
    // They also jump, each to the other side.
    fast.set(-HOUR_SECONDS);
    slow.set(HOUR_SECONDS);
    world.receiver.wait_for(DELIVERIES).await;
    arrivals.check_limits();
    let rate = arrivals.steady_rate(20);
    assert!(rate >= 40.0, "only {rate:.1} in a second: nobody waits for another clock");
    let report = world.end().await;
    assert_eq!((report.delivered, report.repeated_requests, report.dead_lettered), (DELIVERIES, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_forgets_ends_and_returns_loses_nothing() {
    const DELIVERIES: usize = 500;
    let mut world = World::new([&[], &[]]).await;
    let arrivals = Arrivals::at(&world.receiver);
    world.until_all_are("ready", 1).await;
    world.publish(DELIVERIES).await;
    world.receiver.wait_for(80).await;
    world.redis.flush().await;
    world.receiver.wait_for(160).await;
    world.redis.stop().await;
    world.until_all_are("degraded", 0).await;
    let notes = &world.readiness().await[0].0["notes"]["redis"];
    assert!(notes.as_str().is_some_and(|note| note.contains("alone")), "{notes}");
    // It goes on meanwhile, by the limits of each process, and new events are taken.
    let before = arrivals.sorted().len();
    world.receiver.wait_for(before + 60).await;
    world.publish(20).await;
    world.redis.start().await;
    world.until_all_are("ready", 1).await;
    world.redis.freeze();
    world.until_all_are("degraded", 0).await;
    world.redis.thaw();
    world.until_all_are("ready", 1).await;
    world.receiver.wait_for(DELIVERIES + 20).await;
    let report = world.end().await;
    assert_eq!((report.delivered, report.dead_lettered), (DELIVERIES + 20, 0));
    assert_eq!(report.repeated_requests, 0, "no delivery was sent twice for it");
}

#[tokio::test]
async fn a_tenants_rate_holds_for_all_processes_together() {
    let (database, redis) = (Database::fresh().await, Redis::fresh().await);
    let url = redis.url();
    let variables = [
        ("POSTRIDER_REDIS_URL", url.as_str()),
        ("POSTRIDER_TENANT_RATE", "0.02"),
        ("POSTRIDER_TENANT_BURST", "5"),
    ];
    let first = Server::start_with(&database, "api", &variables).await;
    let second = Server::start_with(&database, "api", &variables).await;
    let publisher = first.publisher().await;
    let elsewhere = publisher.at(&second);
    let mut statuses = Vec::new();
    for number in 0..4 {
        statuses.push(publisher.try_publish(format!("[{number}]")).await.status);
        statuses.push(elsewhere.try_publish(format!("[{number}]")).await.status);
    }
    assert_eq!(statuses, [202, 202, 202, 202, 202, 429, 429, 429]);
}
