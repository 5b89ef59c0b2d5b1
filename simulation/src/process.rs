//! A simulated process: the real engine on a runtime of its own, which runs only when it is told to and until it can do
//! nothing more by itself. Dropping it is a crash: all that it had in memory is gone at once.

use std::{
    future::Future,
    io,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Waker},
    time::Duration,
};

use postrider_core::{address, destination::UrlPolicy};
use postrider_engine::{
    directory,
    engine::{self, Entrance},
    maintenance::upkeep::CleanUp,
    supervisor::{self, Shutdown, Supervisor},
};
use postrider_store::{
    failpoint::{self, Action, Plan, Point},
    ingest::{Accepted, NewEvent, Refusal, Submission},
    instances::Role,
    routing::{Cache, TokenHash},
};
use postrider_testkit::scenario::keyring;
use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
};
use tokio::{runtime::Runtime, sync::oneshot};

use crate::{gate::ProcessId, network::Network, time::ProcessClock, time::Time};

/// Times that a runtime has to find nothing to do: what arrives on a socket is seen only at the next look.
const QUIET_ROUNDS: usize = 3;
/// Longest drain, in simulated time.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// Connections of a process's pool.
pub const POOL_CONNECTIONS: usize = 3;
/// Real time that nothing ever takes.
const NEVER: Duration = Duration::from_secs(3_600);

/// How an answer to a publisher comes back; empty until then.
pub type Answered = Arc<Mutex<Option<Result<Accepted, Refusal>>>>;

#[derive(Debug)]
pub struct Process {
    pub id: ProcessId,
    pub clock: ProcessClock,
    runtime: Option<Runtime>,
    bell: Arc<Bell>,
    pub pool: PgPool,
    engine: Option<Engine>,
    /// Its steps stop; what others do goes on.
    pub is_frozen: bool,
    /// Where its tasks stop, from now on.
    pub stops_at: Option<Point>,
    pub is_draining: bool,
}

#[derive(Debug)]
struct Engine {
    entrance: Option<Entrance>,
    routing: Arc<Cache>,
    shutdown: Shutdown,
    ended: Arc<Mutex<Option<Result<(), supervisor::Error>>>>,
}

/// What a process is born with.
#[derive(Debug)]
pub struct Birth<'a> {
    pub id: ProcessId,
    pub socket_directory: &'a Path,
    pub time: &'a Time,
    pub skew: time::Duration,
    pub seed: u64,
    pub concurrency: u16,
}

impl Process {
    /// Somebody who edits: a pool and no engine.
    pub fn people(birth: &Birth<'_>) -> io::Result<Self> {
        let bell = Arc::<Bell>::default();
        let ringing = Arc::clone(&bell);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(move || ringing.ring())
            .build()?;
        let pool = {
            let _inside = runtime.enter();
            pool(birth.socket_directory)
        };
        Ok(Self {
            id: birth.id,
            clock: ProcessClock::new(birth.time.clone(), birth.skew),
            runtime: Some(runtime),
            bell,
            pool,
            engine: None,
            is_frozen: false,
            stops_at: None,
            is_draining: false,
        })
    }

    /// A process that takes events and delivers them.
    pub fn engine(birth: &Birth<'_>, network: &Network) -> io::Result<Self> {
        let mut process = Self::people(birth)?;
        let Some(runtime) = &process.runtime else { return Ok(process) };
        let mut supervisor = Supervisor::new(Shutdown::default());
        let shutdown = supervisor.shutdown().clone();
        let routing = Arc::new(Cache::new(process.pool.clone()));
        let settings = engine::Settings {
            role: Role::All,
            host: format!("host-{}", birth.id),
            options: options(birth.socket_directory),
            pool: process.pool.clone(),
            routing: Arc::clone(&routing),
            clock: Arc::new(process.clock.clone()),
            transport: network.transport(birth.id, birth.time.clone()),
            limiter: None,
            queue: None,
            concurrency: birth.concurrency,
            directory: directory::Settings {
                keyring: keyring(),
                url_policy: UrlPolicy { allow_query: false, allow_loopback_http: true },
                address_policy: address::Policy { allow_loopback: true, ..address::Policy::default() },
            },
            seed: birth.seed,
            // Where rows lie must not depend on it, and the gate lets connections share sessions.
            clean_up: CleanUp::AutovacuumAlone,
        };
        let entrance = {
            let _inside = runtime.enter();
            engine::start(settings, &mut supervisor)
        };
        let ended = Arc::new(Mutex::new(None));
        let (clock, result) = (process.clock.clone(), Arc::clone(&ended));
        runtime.spawn(async move {
            let how = supervisor.run(&clock, DRAIN_LIMIT).await;
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(how);
        });
        process.engine = Some(Engine { entrance, routing, shutdown, ended });
        Ok(process)
    }

    /// Runs until nothing can happen in this process by itself.
    pub fn run(&self) {
        let Some(runtime) = &self.runtime else { return };
        if let Some(point) = self.stops_at {
            failpoint::arm(Plan { point, action: Action::Hang, passes: 0 });
        }
        runtime.block_on(async {
            for _ in 0..QUIET_ROUNDS {
                self.bell.rung().await;
            }
        });
        failpoint::disarm();
    }

    /// Starts something in this process.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(work);
        }
    }

    /// Publishes as the API does: the plan from memory, then through the entrance.
    pub fn publish(&self, token_hash: TokenHash, event: NewEvent) -> Answered {
        let answered = Answered::default();
        let Some(engine) = &self.engine else { return answered };
        let (routing, entrance) = (Arc::clone(&engine.routing), engine.entrance.clone());
        let result = Arc::clone(&answered);
        self.spawn(async move {
            let answer = submit(&routing, entrance, token_hash, event).await;
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        });
        answered
    }

    /// Begins an orderly end.
    pub fn drain(&mut self) {
        self.is_draining = true;
        if let Some(engine) = &mut self.engine {
            engine.entrance = None;
            engine.shutdown.drain();
        }
    }

    /// How the engine ended, if it has.
    pub fn ended(&self) -> Option<Result<(), String>> {
        let engine = self.engine.as_ref()?;
        let ended = engine.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.as_ref().map(|how| how.as_ref().copied().map_err(ToString::to_string))
    }
}

async fn submit(
    routing: &Cache,
    entrance: Option<Entrance>,
    token_hash: TokenHash,
    event: NewEvent,
) -> Result<Accepted, Refusal> {
    let known = routing.by_token(&token_hash, || None).await.map_err(|_| Refusal::Unavailable)?;
    let routing = known.ok_or(Refusal::Unauthorized)?;
    let (reply, answer) = oneshot::channel();
    let submission = Submission { routing, event, reply };
    entrance.ok_or(Refusal::Unavailable)?.send(submission).await.map_err(|_| Refusal::Unavailable)?;
    answer.await.map_err(|_| Refusal::Unknown)?
}

impl Drop for Process {
    fn drop(&mut self) {
        // The pool returns connections through the runtime, whose end ends that too.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn options(socket_directory: &Path) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .socket(socket_directory)
        .port(5432)
        .username("simulated")
        .database("simulated")
        .ssl_mode(PgSslMode::Disable)
}

fn pool(socket_directory: &Path) -> PgPool {
    PgPoolOptions::new()
        .max_connections(u32::try_from(POOL_CONNECTIONS).unwrap_or(u32::MAX))
        .test_before_acquire(false)
        .acquire_timeout(NEVER)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_lazy_with(options(socket_directory))
}

/// Rings when a runtime has nothing to do.
#[derive(Debug, Default)]
struct Bell {
    has_rung: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Bell {
    fn ring(&self) {
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.has_rung.store(true, Ordering::Release);
            waker.wake();
        }
    }

    /// Completes when the runtime has nothing to do the next time.
    async fn rung(&self) {
        self.has_rung.store(false, Ordering::Release);
        std::future::poll_fn(|context| {
            if self.has_rung.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
