//! Runs a command with a temporary, migrated PostgreSQL in `DATABASE_URL`:
//! `with_postgres MIGRATIONS_DIRECTORY COMMAND [ARGUMENT…]`.
//!
//! The compile-time check of SQL needs a database that has the schema, whether or not Postrider itself compiles;
//! so the migrations are applied here as plain files, in the order of their names.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use postrider_embedded::{Binaries, Cluster, Durability, Place, Settings, cluster};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = env::args_os().skip(1);
    let migrations = PathBuf::from(arguments.next().context("which directory of migrations?")?);
    let program = arguments.next().context("which command?")?;

    let settings = Settings {
        binaries: Binaries::find(None)?,
        place: Place::Temporary,
        durability: Durability::None,
        parameters: Vec::new(),
    };
    let cluster = Cluster::start(settings).await?;
    let url = cluster.url(cluster::DATABASE);
    migrate(&url, &migrations).await?;
    let status = Command::new(program).args(arguments).env("DATABASE_URL", &url).status()?;
    cluster.stop().await?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

async fn migrate(url: &str, directory: &Path) -> anyhow::Result<()> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .with_context(|| format!("reading {}", directory.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
    files.sort();
    let mut connection = PgConnection::connect(url).await?;
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        connection
            .execute(sqlx::raw_sql(AssertSqlSafe(text)))
            .await
            .with_context(|| format!("applying {}", file.display()))?;
    }
    Ok(connection.close().await?)
}
