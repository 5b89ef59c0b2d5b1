//! `postrider dev`: everything on this machine, on a PostgreSQL that it starts itself.

use std::{
    fs,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use postrider_embedded::{Binaries, Cluster, Durability, Place, cluster, memory};
use postrider_engine::{
    clock::{Clock, SystemClock},
    supervisor::Shutdown,
};
use postrider_simulator::Simulator;
use postrider_store::installation::{KeyError, PepperError};
use tokio::net::TcpListener;

use crate::{
    configuration::{self, Configuration, setting},
    development::{DATABASE, Example, SecretsFile, Shown, Summary, Surroundings},
    environment::Environment,
    process::{Parts, Process, Role},
    signals::Signals,
    telemetry::{self, LogFormat, Logs, Output},
};

const EXAMPLES: &str = "\
Examples:
  postrider dev
  postrider dev --listen 127.0.0.1:9000 --data-dir /tmp/try
  postrider dev --once               show one event going the whole way, then stop

PostgreSQL's programs are looked for on PATH and under /usr/lib/postgresql; POSTRIDER_POSTGRES_BINARIES names another
directory. POSTRIDER_LOG=info shows more of what happens.";

/// How long work in hand may take to finish after Ctrl-C.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Try everything on this machine: a private PostgreSQL, a server, scripted receivers, an example.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Where the database and the secrets are kept
    #[arg(long, value_name = "DIRECTORY", default_value = ".postrider")]
    data_dir: PathBuf,
    /// Address the server listens on [default: `POSTRIDER_LISTEN`, else 127.0.0.1:8787]
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Address the simulator listens on; where it is taken, a free port is
    #[arg(long, default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8788))]
    simulator_listen: SocketAddr,
    /// Stop when an event was delivered; fail where none could be
    #[arg(long)]
    once: bool,
    /// How log lines look
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

pub(crate) async fn run(arguments: Arguments, environment: Environment) -> anyhow::Result<()> {
    let logs = Logs { format: arguments.log_format, default_filter: "warn", to: Output::Stderr };
    telemetry::start_logs(logs, &environment)?;
    let signals = Signals::register().context("signals cannot be watched")?;
    let shutdown = Shutdown::default();
    // Said at once: what is in hand and PostgreSQL's last checkpoint may take seconds.
    let told = async {
        shutdown.draining().await;
        eprintln!("Stopping …");
        std::future::pending::<std::convert::Infallible>().await
    };
    // Watched from the start: one that comes while PostgreSQL starts drains the server as soon as it runs.
    tokio::select! {
        ended = start_and_run(&arguments, environment, &shutdown) => ended,
        never = signals.watch(&shutdown) => match never {},
        never = told => match never {},
    }
}

async fn start_and_run(
    arguments: &Arguments,
    mut environment: Environment,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    if let Some(listen) = arguments.listen {
        environment.set(setting::LISTEN.variable, listen.to_string());
    }
    // The quick mistakes first: what is taken is said before a database is made. Where the same directory is in use, its
    // port mostly is too, but another port would not help.
    let directory = &arguments.data_dir;
    Cluster::require_free(&postgres_directory(directory))?;
    let listen = configuration::read(&environment, None, configuration::Http::section)?.configuration.listen;
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}; choose another address with --listen"))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let simulator = start_simulator(arguments.simulator_listen, Arc::clone(&clock)).await?;
    make_directory(directory).with_context(|| format!("{} cannot be made", directory.display()))?;
    let mut secrets = SecretsFile::open(directory)?;
    let (cluster, postgres_version) = start_postgres(directory, &environment).await?;
    secrets.put(DATABASE, &cluster.url(cluster::DATABASE))?;

    surround(&mut environment, &cluster, &secrets);
    let read = configuration::read(&environment, None, Configuration::section)?;
    let configuration = read.with_warnings_logged();
    let server = listener.local_addr()?;
    let (role, shutdown) = (Role::All, shutdown.clone());
    let parts = Parts { configuration, role, listener, shutdown: shutdown.clone(), clock };
    let stage = Stage { server, simulator: &simulator, secrets, cluster: &cluster, postgres_version };
    let ended = run_and_show(parts, stage, arguments.once, &shutdown).await;
    simulator.stop().await;
    cluster.stop().await.context("PostgreSQL did not stop in order")?;
    ended
}

/// What the example plays on.
struct Stage<'a> {
    server: SocketAddr,
    simulator: &'a Simulator,
    secrets: SecretsFile,
    cluster: &'a Cluster,
    postgres_version: u32,
}

/// Runs the server until it is drained, and shows the example meanwhile.
async fn run_and_show(parts: Parts, stage: Stage<'_>, once: bool, shutdown: &Shutdown) -> anyhow::Result<()> {
    let lost_secrets = format!(
        "the database in {} was made with other secrets than those in {}: bring that file back, or remove the data \
         directory to start afresh",
        stage.cluster.data_dir().display(),
        stage.secrets.path().display()
    );
    let running = async {
        let started = Process::start(parts).await.map_err(|error| {
            let is_lost = error.is::<PepperError>() || error.is::<KeyError>();
            if is_lost { error.context(lost_secrets) } else { error }
        });
        started?.run(DRAIN_LIMIT).await
    };
    let mut failure = None;
    let shown = async {
        match show(stage, once).await {
            Ok(()) if !once => {}
            // A signal came first and broke it off.
            Err(_) if shutdown.is_draining() => {}
            Ok(()) => shutdown.drain(),
            Err(error) => {
                failure = Some(error);
                shutdown.drain();
            }
        }
        std::future::pending::<std::convert::Infallible>().await
    };
    tokio::select! {
        ended = running => ended?,
        never = shown => match never {},
    }
    failure.map_or(Ok(()), Err)
}

async fn show(mut stage: Stage<'_>, once: bool) -> anyhow::Result<()> {
    let secrets = &mut stage.secrets;
    let surroundings = Surroundings { server: stage.server, simulator: stage.simulator, secrets };
    let example = Example::run(surroundings).await?;
    let summary = Summary {
        server: stage.server,
        simulator: stage.simulator.address(),
        data: stage.cluster.data_dir(),
        postgres_version: stage.postgres_version,
        secrets: stage.secrets.path(),
        example: &example,
    };
    println!("{summary}");
    match &example.shown {
        Shown::Nothing { reason } if once => Err(anyhow::anyhow!("no event was delivered: {reason}")),
        Shown::Nothing { .. } | Shown::Arrived { .. } => Ok(()),
    }
}

/// The settings that `dev` decides, whatever the environment says about them.
fn surround(environment: &mut Environment, cluster: &Cluster, secrets: &SecretsFile) {
    for setting in [&setting::DATABASE_URL, &setting::MIGRATION_DATABASE_URL, &setting::DIRECT_DATABASE_URL] {
        environment.remove(setting.variable);
        environment.remove(&setting.file_variable());
    }
    environment.set(setting::DATABASE_URL.variable, cluster.local_url(cluster::DATABASE));
    environment.set(setting::ALLOW_SCHEMA_UPGRADE.variable, "1");
    environment.set(setting::ALLOW_LOOPBACK_ENDPOINTS.variable, "1");
    for variable in secrets.overruled(environment) {
        let path = secrets.path().display();
        tracing::warn!("{variable} of the environment is not used: `dev` takes it from {path}");
    }
    secrets.apply(environment);
}

async fn start_simulator(wanted: SocketAddr, clock: Arc<dyn Clock>) -> anyhow::Result<Simulator> {
    let settings = |listen| {
        let clock = Arc::clone(&clock);
        postrider_simulator::Settings { listen, now: Arc::new(move || clock.now()) }
    };
    match Simulator::start(settings(wanted)).await {
        Err(postrider_simulator::Error::Listen { source, .. }) if source.kind() == ErrorKind::AddrInUse => {
            let anywhere = SocketAddr::new(wanted.ip(), 0);
            Ok(Simulator::start(settings(anywhere)).await?)
        }
        started => Ok(started?),
    }
}

async fn start_postgres(directory: &Path, environment: &Environment) -> anyhow::Result<(Cluster, u32)> {
    let configured = environment.get(setting::POSTGRES_BINARIES.variable).map(Path::new);
    let binaries = Binaries::find(configured)?;
    let version = binaries.major_version();
    eprintln!("Starting PostgreSQL {version} from {} …", binaries.directory().display());
    let place = Place::Directory(postgres_directory(directory));
    let parameters = memory::shared_buffers().into_iter().collect();
    let settings = cluster::Settings { binaries, place, durability: Durability::Full, parameters };
    Ok((Cluster::start(settings).await?, version))
}

fn postgres_directory(directory: &Path) -> PathBuf {
    directory.join("postgresql")
}

/// Others may pass through but not look in: secrets lie here, and PostgreSQL may run as another account.
fn make_directory(directory: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o711).create(directory)
}
