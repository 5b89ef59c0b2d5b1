//! What all runs of one worker share: a private PostgreSQL whose `now()` is the simulated time, and the sessions with it.
//!
//! The product's statements say `now()` without a schema. A schema that comes first in the search path has a function
//! of that name, which shows what the gate tells each session when a transaction begins: so the time of a transaction
//! is that of its beginning, as with the real one.

use std::{os::unix::fs::PermissionsExt as _, path::Path};

use anyhow::Context as _;
use postrider_embedded::{Binaries, Cluster, Durability, Place, Settings, cluster};
use postrider_store::migrate::{self, Upgrade};
use sqlx::{
    AssertSqlSafe, Executor as _, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::runtime::Runtime;

use crate::{backend::Server, check, gate::Gate, rest};

/// For every session: the simulated time first; and plans that do not depend on how large tables are when they are made,
/// so that a seed's rows come in the same order whatever ran before it.
const SESSION: [(&str, &str); 7] = [
    ("search_path", "simulated,pg_catalog,public"),
    ("simulated.now", "2026-07-01T12:00:00Z"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
];

const SIMULATED_NOW: &str = "
    CREATE SCHEMA simulated;
    CREATE FUNCTION simulated.now() RETURNS timestamptz LANGUAGE sql STABLE
        AS $$ SELECT pg_catalog.current_setting('simulated.now')::timestamptz $$;
    CREATE FUNCTION simulated.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
        AS $$ SELECT pg_catalog.current_setting('simulated.now')::timestamptz $$;
    -- Statements that measure themselves take a moment.
    CREATE FUNCTION simulated.clock_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
        AS $$ SELECT pg_catalog.current_setting('simulated.now')::timestamptz + interval '50 milliseconds' $$";

#[derive(Debug)]
pub struct Laboratory {
    pub gate: Gate,
    pub pool: PgPool,
    pub runtime: Runtime,
    _cluster: Cluster,
    _directory: tempfile::TempDir,
}

impl Laboratory {
    pub fn open() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let directory = tempfile::Builder::new().prefix("postrider-simulation-").tempdir()?;
        let cluster = runtime.block_on(start(directory.path()))?;
        let address: PgConnectOptions = cluster.local_url(cluster::DATABASE).parse()?;
        let directory_of_socket =
            address.get_socket().context("the temporary directory's path is too long")?;
        let server = Server {
            socket: directory_of_socket.join(format!(".s.PGSQL.{}", address.get_port())),
            user: cluster::SUPERUSER.to_owned(),
            database: cluster::DATABASE.to_owned(),
        };
        let options = address.options(SESSION);
        let pool = runtime.block_on(prepare(options))?;
        let base_options = SESSION.map(|(name, value)| format!("-c {name}={value}")).join(" ");
        let looks = [check::EVIDENCE, check::CLAIM, check::REPLAYS, check::LETTERS, check::USED, rest::LEFT];
        let gate = Gate::new(server, &base_options, directory.path(), &looks)?;
        Ok(Self { gate, pool, runtime, _cluster: cluster, _directory: directory })
    }
}

async fn start(directory: &Path) -> anyhow::Result<Cluster> {
    // Who may reach this socket may look: there is nothing in it but made-up rows, and it lasts for minutes.
    let access = directory.join("access");
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))?;
    std::fs::write(&access, "local all all trust\nhost all all 127.0.0.1/32 trust\n")?;
    std::fs::set_permissions(&access, std::fs::Permissions::from_mode(0o644))?;
    let parameter = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let parameters = vec![
        parameter("hba_file", &access.display().to_string()),
        parameter("max_connections", "300"),
        // Rows lie where a run put them, however many runs came before.
        parameter("autovacuum", "off"),
        parameter("jit", "off"),
        // The gate decides how long a lock is waited for, and by simulated time.
        parameter("deadlock_timeout", "10min"),
        // Nothing is ever replayed, replicated or measured.
        parameter("wal_level", "minimal"),
        parameter("max_wal_senders", "0"),
        parameter("wal_writer_delay", "10s"),
        parameter("checkpoint_timeout", "1h"),
        parameter("bgwriter_lru_maxpages", "0"),
        parameter("track_activities", "off"),
        parameter("track_counts", "off"),
        parameter("update_process_title", "off"),
        parameter("log_min_messages", "fatal"),
        parameter("log_checkpoints", "off"),
    ];
    let settings = Settings {
        binaries: Binaries::find(None)?,
        place: Place::Temporary,
        durability: Durability::None,
        parameters,
    };
    Cluster::start(settings).await.context("the private PostgreSQL does not start")
}

async fn prepare(options: PgConnectOptions) -> anyhow::Result<PgPool> {
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
    pool.execute(AssertSqlSafe(SIMULATED_NOW.to_owned())).await?;
    migrate::prepare(&pool, Upgrade::Refuse).await?;
    Ok(pool)
}
