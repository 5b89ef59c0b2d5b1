//! The schema's version, and how it changes: embedded migrations, all pending ones in one transaction.
//!
//! One start at a time migrates (an advisory lock serialises them), and a failure leaves the old version intact. An
//! empty database is filled without asking; an existing schema is only upgraded when the operator allows it, and one
//! that is newer than this program is refused.

use sqlx::{
    PgConnection, PgPool,
    migrate::{MigrateError, Migrator},
};

/// Where the applied migrations are written down.
const TABLE: &str = "postrider.schema_migrations";
/// Key of the advisory lock that serialises migrating processes; any fixed number that nothing else here uses.
const LOCK_KEY: i64 = 0x706f_7374_7269_6465;
/// Waits for another process that is migrating, for a minute at most.
const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = '60s'";
/// A migration that waits long for a table lock makes every query queue up behind it: give up early instead.
const LIMIT_TABLE_LOCKS: &str = "SET LOCAL lock_timeout = '5s'";

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
    #[error("the schema could not be changed and was left at its old version")]
    Migration(#[from] MigrateError),
    #[error("the schema version could not be read")]
    Database(#[from] sqlx::Error),
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

    let mut transaction = pool.begin_with(BEGIN).await?;
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", LOCK_KEY).execute(&mut *transaction).await?;
    // Another process may have migrated while this one waited.
    let found = judge(&applied(&mut transaction).await?, migrator, upgrade)?;
    if found.is_current() {
        return Ok(found);
    }
    sqlx::query(LIMIT_TABLE_LOCKS).execute(&mut *transaction).await?;
    migrator.run_direct(None, &mut *transaction, false).await?;
    transaction.commit().await?;
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
