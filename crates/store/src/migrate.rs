//! The schema's version, and how it changes: embedded migrations, all pending ones in one transaction.
//!
//! One start at a time migrates (an advisory lock serialises them), and a failure leaves the old version intact. An
//! empty database is filled without asking; an existing schema is only upgraded when the operator allows it, and one
//! that is newer than this program is refused.

use std::fmt;

use sqlx::{
    PgConnection, PgPool,
    error::DatabaseError,
    migrate::{MigrateError, Migrator},
};

use crate::error;

/// Where the applied migrations are written down.
const TABLE: &str = "postrider.schema_migrations";
/// Key of the advisory lock that serialises migrating processes; any fixed number that nothing else here uses.
const LOCK_KEY: i64 = 0x706f_7374_7269_6465;
/// Waits for another process that is migrating, for a minute at most.
const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = '60s'";
/// A migration that waits long for a table lock makes every query queue up behind it: give up early instead.
const LIMIT_TABLE_LOCKS: &str = "SET LOCAL lock_timeout = '5s'";
/// SQLSTATE `insufficient_privilege`.
const NOT_PERMITTED: &str = "42501";

/// May an existing schema be changed?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upgrade {
    Allow,
    Refuse,
}

/// The version of the schema in a database, and the one this program is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// `None`: the database holds no schema yet.
    pub applied: Option<i64>,
    pub embedded: i64,
}

/// Each text holds its cause, in its own words and once: the errors that wrap one repeat it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the database schema has version {applied}, this program needs {embedded}: back up the database, then set \
         POSTRIDER_ALLOW_SCHEMA_UPGRADE=1 and start again"
    )]
    UpgradeNotAllowed { applied: i64, embedded: i64 },
    #[error(
        "the database schema has version {applied}, newer than the version {embedded} this program knows: \
         run a newer release of postrider"
    )]
    Newer { applied: i64, embedded: i64 },
    #[error(
        "migration {version} was applied to this database with other contents than this program holds: \
         run the release that made the schema, or restore a backup"
    )]
    Altered { version: i64 },
    #[error(
        "the schema could not be {change}: {}. Set POSTRIDER_MIGRATION_DATABASE_URL to the URL of a role that may do that, \
         and run `{}`",
        reason(.cause),
        .change.command()
    )]
    NotPermitted { change: Change, cause: MigrateError },
    #[error("the schema could not be {change}, and nothing was changed: {}", reason(.cause))]
    Migration { change: Change, cause: MigrateError },
    #[error(
        "the schema may or may not be {change}: the database did not confirm it ({}). Run `{}` to see, and to do what \
         is left",
        words(.cause),
        .change.command()
    )]
    Unknown { change: Change, cause: sqlx::Error },
    #[error("the schema version could not be read: {}", words(.0))]
    Database(sqlx::Error),
    #[error(
        "the schema version could not be read: {}. As the owner of the schema run `GRANT postrider_service TO …` for the \
         role that connects",
        words(.0)
    )]
    Unreadable(sqlx::Error),
}

/// What was to be done to the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Create,
    Upgrade,
}

/// Brings the database to this program's schema; see [`bring_to`].
pub async fn prepare(pool: &PgPool, upgrade: Upgrade) -> Result<Versions, Error> {
    bring_to(pool, &embedded(), upgrade).await
}

/// Reads the versions and changes nothing.
pub async fn inspect(pool: &PgPool) -> Result<Versions, Error> {
    let applied = applied(&mut *pool.acquire().await?).await?;
    Ok(Versions { applied: newest(&applied), embedded: newest_of(&embedded()) })
}

/// Applies the migrations that are missing, and returns the versions found before. On a schema that is current it
/// writes nothing and takes no lock, so that a role without the right to alter the schema can start.
pub async fn bring_to(pool: &PgPool, migrator: &Migrator, upgrade: Upgrade) -> Result<Versions, Error> {
    let found = judge(&applied(&mut *pool.acquire().await?).await?, migrator, upgrade)?;
    if found.is_current() {
        return Ok(found);
    }

    let change = if found.applied.is_some() { Change::Upgrade } else { Change::Create };
    let failed = |error: MigrateError| Error::of_change(change, error);
    let mut transaction = pool.begin_with(BEGIN).await.map_err(|error| failed(error.into()))?;
    let lock = sqlx::query!("SELECT pg_advisory_xact_lock($1)", LOCK_KEY).execute(&mut *transaction);
    lock.await.map_err(|error| failed(error.into()))?;
    // Another process may have migrated while this one waited.
    let found = judge(&applied(&mut transaction).await?, migrator, upgrade)?;
    if found.is_current() {
        return Ok(found);
    }
    let limit = sqlx::query(LIMIT_TABLE_LOCKS).execute(&mut *transaction);
    limit.await.map_err(|error| failed(error.into()))?;
    migrator.run_direct(None, &mut *transaction, false).await.map_err(failed)?;
    // An error that is answered may still leave it open: a pooler answers one when it loses the server.
    transaction.commit().await.map_err(|error| match error::Error::from(error) {
        error::Error::Data(cause) | error::Error::Contended(cause) => failed(cause.into()),
        error::Error::Unavailable(cause) => Error::Unknown { change, cause },
    })?;
    Ok(found)
}

/// The migrations compiled into this program.
pub fn embedded() -> Migrator {
    with_own_table(sqlx::migrate!())
}

/// Makes a migrator keep its books where Postrider does, under Postrider's own lock.
pub fn with_own_table(mut migrator: Migrator) -> Migrator {
    migrator.dangerous_set_table_name(TABLE);
    migrator.create_schema("postrider");
    migrator.set_locking(false);
    migrator
}

impl Error {
    fn of_change(change: Change, cause: MigrateError) -> Self {
        let error = match &cause {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => Some(error),
            _ => None,
        };
        if error.is_some_and(is_not_permitted) {
            return Self::NotPermitted { change, cause };
        }
        Self::Migration { change, cause }
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        if is_not_permitted(&error) { Self::Unreadable(error) } else { Self::Database(error) }
    }
}

fn is_not_permitted(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).as_deref() == Some(NOT_PERMITTED)
}

impl Change {
    /// What changes the schema, and does nothing else.
    const fn command(self) -> &'static str {
        match self {
            Self::Create => "postrider migrate",
            Self::Upgrade => "postrider migrate --allow-upgrade",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Create => "created",
            Self::Upgrade => "upgraded",
        })
    }
}

impl Versions {
    pub fn is_current(self) -> bool {
        self.applied == Some(self.embedded)
    }
}

#[derive(sqlx::FromRow)]
struct Applied {
    version: i64,
    checksum: Vec<u8>,
}

async fn applied(connection: &mut PgConnection) -> Result<Vec<Applied>, sqlx::Error> {
    let exists = sqlx::query_scalar!(r#"SELECT to_regclass($1) IS NOT NULL AS "exists!""#, TABLE)
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        return Ok(Vec::new());
    }
    // Not checked at compile time: the migrator makes this table, no migration does.
    sqlx::query_as("SELECT version, checksum FROM postrider.schema_migrations ORDER BY version")
        .fetch_all(connection)
        .await
}

fn judge(applied: &[Applied], migrator: &Migrator, upgrade: Upgrade) -> Result<Versions, Error> {
    let versions = Versions { applied: newest(applied), embedded: newest_of(migrator) };
    let Some(newest) = versions.applied else {
        return Ok(versions);
    };
    let embedded = versions.embedded;
    if newest > embedded {
        return Err(Error::Newer { applied: newest, embedded });
    }
    for migration in migrator.iter() {
        let is_altered =
            |row: &Applied| row.version == migration.version && row.checksum != *migration.checksum;
        if applied.iter().any(is_altered) {
            return Err(Error::Altered { version: migration.version });
        }
    }
    match upgrade {
        Upgrade::Refuse if newest < embedded => Err(Error::UpgradeNotAllowed { applied: newest, embedded }),
        Upgrade::Refuse | Upgrade::Allow => Ok(versions),
    }
}

fn newest(applied: &[Applied]) -> Option<i64> {
    applied.iter().map(|row| row.version).max()
}

fn newest_of(migrator: &Migrator) -> i64 {
    migrator.iter().map(|migration| migration.version).max().unwrap_or_default()
}

fn reason(error: &MigrateError) -> String {
    match error {
        MigrateError::Execute(error) => words(error),
        MigrateError::ExecuteMigration(error, version) => format!("migration {version}: {}", words(error)),
        other => other.to_string(),
    }
}

/// What the server said. The line that sqlx adds to it is one of the server's own source.
fn words(error: &sqlx::Error) -> String {
    match error.as_database_error() {
        Some(error) => error.message().to_owned(),
        None => error.to_string(),
    }
}
