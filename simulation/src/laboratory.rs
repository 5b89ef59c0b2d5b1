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

use crate::{backend::Server, gate::Gate, time::Time};

/// For every session: the simulated time first.
const SEARCH_PATH: &str = "simulated,pg_catalog,public";
const BEFORE_TIME: &str = "2026-07-01T12:00:00Z";

const SIMULATED_NOW: &str = "
    CREATE SCHEMA simulated;
    CREATE FUNCTION simulated.now() RETURNS timestamptz LANGUAGE sql STABLE
        AS $$ SELECT pg_catalog.current_setting('simulated.now')::timestamptz $$;
    CREATE FUNCTION simulated.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
        AS $$ SELECT pg_catalog.current_setting('simulated.now')::timestamptz $$";

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
        let address: PgConnectOptions = cluster.url(cluster::DATABASE).parse()?;
        let server = Server {
            port: address.get_port(),
            user: cluster::SUPERUSER.to_owned(),
            database: cluster::DATABASE.to_owned(),
        };
        let options = address.options([("search_path", SEARCH_PATH), ("simulated.now", BEFORE_TIME)]);
        let pool = runtime.block_on(prepare(options))?;
        let base_options = format!("-c search_path={SEARCH_PATH} -c simulated.now={BEFORE_TIME}");
        let gate = Gate::new(server, &base_options, directory.path(), Time::default())?;
        Ok(Self { gate, pool, runtime, _cluster: cluster, _directory: directory })
    }
}

async fn start(directory: &Path) -> anyhow::Result<Cluster> {
    // Who may reach this loopback port may look: there is nothing in it but made-up rows, and it lasts for minutes.
    let access = directory.join("access");
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))?;
    std::fs::write(&access, "host all all 127.0.0.1/32 trust\n")?;
    std::fs::set_permissions(&access, std::fs::Permissions::from_mode(0o644))?;
    let parameter = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let parameters = vec![
        parameter("hba_file", &access.display().to_string()),
        parameter("max_connections", "300"),
        // Rows lie where a run put them, however many runs came before.
        parameter("autovacuum", "off"),
        // The gate decides how long a lock is waited for, and by simulated time.
        parameter("deadlock_timeout", "10min"),
        parameter("synchronous_commit", "off"),
        parameter("full_page_writes", "off"),
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
