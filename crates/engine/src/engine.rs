//! Starts the parts of the engine that a role needs, each as a supervised task, and ends them in the right order.
//!
//! Drain: the taker and maintenance stop at once; ingest answers what was sent to it; deliveries in hand finish; their
//! results are written; only then does the heart stop.

use std::{
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use postrider_core::{limiter::Limiter, queue::Queue};
pub use postrider_store::ingest::Entrance;
use postrider_store::{instances::Role, quota, routing};
use sqlx::{PgPool, postgres::PgConnectOptions};
use tokio::sync::{Notify, mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    arrive,
    clock::Clock,
    credentials::Tokens,
    directory::{self, Directory},
    heartbeat::{self, Presence},
    identity::Identity,
    ingest::{self, IngestLane, Kind, Locked},
    limits::Limits,
    maintenance::{self, discard, expire, hold, promote, recover, replay, upkeep},
    observe,
    ready::Ready,
    scout, settle,
    supervisor::Supervisor,
    take,
    transport::Transport,
    wake::{self, Notifier},
    worker::{Dice, Worker},
};

/// Submissions that may wait for the ingest lanes; beyond that publishers are told to come back. Each lane has room for as
/// many: whoever has a place for an event has it in any of them.
const MAX_WAITING_SUBMISSIONS: usize = 4_096;

/// Between two looks at connections that nobody uses.
const TIDY_INTERVAL: Duration = Duration::from_secs(10);

/// What the engine needs to start.
#[derive(Debug)]
pub struct Settings<T> {
    pub role: Role,
    /// Names this machine in the list of processes.
    pub host: String,
    /// For connections that need a session of their own: never through a pooler.
    pub options: PgConnectOptions,
    pub pool: PgPool,
    pub routing: Arc<routing::Cache>,
    pub clock: Arc<dyn Clock>,
    pub transport: T,
    /// Messages about what is ready, where a broker is used besides the table.
    pub queue: Option<Arc<dyn Queue>>,
    /// Limits that other processes share; without them this process holds its own alone.
    pub limiter: Option<Arc<dyn Limiter>>,
    /// Requests in flight at once.
    pub concurrency: u16,
    pub directory: directory::Settings,
    /// Seed of the jitter between retries and of the span ids.
    pub seed: u64,
    /// Who cleans up after the queue.
    pub clean_up: upkeep::CleanUp,
}

/// Starts the engine; the entrance is `None` where the role takes no events.
pub fn start<T: Transport>(settings: Settings<T>, supervisor: &mut Supervisor) -> Option<Entrance> {
    let role = settings.role;
    let notifier = Notifier::default();
    let (options, clock) = (settings.options.clone(), Arc::clone(&settings.clock));
    let routing = Arc::clone(&settings.routing);
    let queue = settings.queue.clone();
    supervisor.start(
        "wake",
        notifier.clone().run(options.clone(), Arc::clone(&clock), supervisor.shutdown().clone()),
    );
    let worker = match role {
        Role::Worker | Role::All => Some(start_worker(settings, &notifier, supervisor)),
        Role::Api => {
            let presence = Presence { role, host: settings.host };
            let shutdown = supervisor.shutdown().clone();
            supervisor.start(
                "heartbeat",
                heartbeat::attend(presence, options.clone(), Arc::clone(&clock), shutdown.clone()),
            );
            supervisor.start("observe", observe::run(settings.pool, Arc::clone(&clock), shutdown));
            None
        }
    };
    match role {
        Role::Worker => None,
        Role::Api | Role::All => {
            let (locked, known) = (Arc::<Locked>::default(), Arc::<quota::Known>::default());
            let counting = ingest::count::run(
                options.clone(),
                Arc::clone(&known),
                Arc::clone(&clock),
                supervisor.shutdown().clone(),
            );
            supervisor.start("count", counting);
            let lane = |kind| IngestLane {
                options: options.clone(),
                clock: Arc::clone(&clock),
                routing: Arc::clone(&routing),
                worker: worker.clone(),
                notifier: notifier.clone(),
                queue: queue.clone(),
                kind,
                locked: Arc::clone(&locked),
                known: Arc::clone(&known),
            };
            Some(start_ingest(lane, supervisor))
        }
    }
}

fn start_ingest<T: Transport>(lane: impl Fn(Kind) -> IngestLane<T>, supervisor: &mut Supervisor) -> Entrance {
    let (ordinary, submissions) = mpsc::channel(MAX_WAITING_SUBMISSIONS);
    let (metered, submissions_metered) = mpsc::channel(MAX_WAITING_SUBMISSIONS);
    let (side_lane, aside) = mpsc::channel(MAX_WAITING_SUBMISSIONS);
    supervisor.start("ingest", lane(Kind::Main { side_lane: side_lane.clone() }).run(submissions));
    supervisor.start("ingest-metered", lane(Kind::Metered { side_lane }).run(submissions_metered));
    supervisor.start("ingest-aside", lane(Kind::Side).run(aside));
    Entrance::new(ordinary, metered)
}

fn start_worker<T: Transport>(
    settings: Settings<T>,
    notifier: &Notifier,
    supervisor: &mut Supervisor,
) -> Arc<Worker<T>> {
    let (settlements, results) = mpsc::channel(usize::from(settings.concurrency));
    let presence = Presence { role: settings.role, host: settings.host };
    let deliveries = TaskTracker::new();
    let worker = Arc::new(Worker {
        directory: Directory::new(settings.pool.clone(), settings.directory),
        tokens: Tokens::new(Arc::clone(&settings.clock), deliveries.clone()),
        options: settings.options,
        pool: settings.pool,
        clock: settings.clock,
        transport: settings.transport,
        limits: Limits::new(settings.concurrency),
        limiter: settings.limiter,
        ready: Ready::default(),
        identity: Identity::new(),
        processes: AtomicU32::new(1),
        dice: Dice(settings.seed),
        queue: settings.queue,
        settlements,
        deliveries,
        shutdown: supervisor.shutdown().clone(),
    });
    let (finished, settled) = (CancellationToken::new(), CancellationToken::new());
    supervisor.start("take", take::run(Arc::clone(&worker)));
    let look = Arc::<Notify>::default();
    if let Some(queue) = worker.queue.clone() {
        supervisor.start("arrive", arrive::run(Arc::clone(&worker), queue, notifier.clone()));
    }
    supervisor.start("hear", wake::hear(Arc::clone(&worker), notifier.caller(), Arc::clone(&look)));
    supervisor.start("scout", scout::run(Arc::clone(&worker), look));
    supervisor.start("deliveries", finish_deliveries(Arc::clone(&worker), finished.clone()));
    supervisor.start("settle", settle_all(Arc::clone(&worker), results, finished, settled.clone()));
    supervisor.start("heartbeat", heartbeat::run(Arc::clone(&worker), presence, settled));
    supervisor.start("promote", maintenance::run(Arc::clone(&worker), promote::SCHEDULE, promote::Promote));
    supervisor.start("hold", maintenance::run(Arc::clone(&worker), hold::SCHEDULE, hold::Hold));
    supervisor.start(
        "recover",
        maintenance::run(Arc::clone(&worker), recover::SCHEDULE, recover::Recover::default()),
    );
    supervisor.start(
        "discard",
        maintenance::run(Arc::clone(&worker), discard::SCHEDULE, discard::Discard::default()),
    );
    supervisor
        .start("replay", maintenance::run(Arc::clone(&worker), replay::SCHEDULE, replay::Replay::default()));
    supervisor.start("expire", maintenance::run(Arc::clone(&worker), expire::SCHEDULE, expire::Expire));
    match settings.clean_up {
        upkeep::CleanUp::Upkeep => supervisor.start(
            "upkeep",
            maintenance::run(Arc::clone(&worker), upkeep::SCHEDULE, upkeep::Upkeep::default()),
        ),
        upkeep::CleanUp::AutovacuumAlone => {}
    }
    let shutdown = supervisor.shutdown().clone();
    supervisor.start("observe", observe::run(worker.pool.clone(), Arc::clone(&worker.clock), shutdown));
    supervisor.start("tidy", tidy(Arc::clone(&worker)));
    worker
}

/// Lets the transport put its things in order now and then, also when nothing is sent, until the drain.
async fn tidy<T: Transport>(worker: Arc<Worker<T>>) -> Result<(), std::convert::Infallible> {
    while worker.pause(TIDY_INTERVAL).await {
        worker.transport.tidy();
    }
    Ok(())
}

/// Waits for the drain, and then for the deliveries in hand: the taker and the ingest lanes count among them, since they
/// may still be about to start some.
async fn finish_deliveries<T: Transport>(
    worker: Arc<Worker<T>>,
    finished: CancellationToken,
) -> Result<(), std::convert::Infallible> {
    worker.shutdown.draining().await;
    worker.deliveries.close();
    worker.deliveries.wait().await;
    finished.cancel();
    Ok(())
}

/// Runs the settle lane to its end, and tells the heart.
async fn settle_all<T: Transport>(
    worker: Arc<Worker<T>>,
    results: mpsc::Receiver<settle::Concluded>,
    finished: CancellationToken,
    settled: CancellationToken,
) -> Result<(), std::convert::Infallible> {
    let ended = settle::run(worker, results, finished).await;
    settled.cancel();
    ended
}
