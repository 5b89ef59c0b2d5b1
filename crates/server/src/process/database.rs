//! Opens the database: the schema first, then the pool.

use std::time::Duration;

use anyhow::{Context as _, bail};
use postrider_store::{
    migrate::{self, Upgrade},
    pool, wall,
};
use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::{
    configuration::{Database, setting},
    database::{reach, reach_directly, reach_for_migrations},
};

/// How long a request waits for a connection before it is answered `503`.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// Shown in `pg_stat_activity`.
const APPLICATION_NAME: &str = "postrider";

/// Proves that requests of tenants can be held behind the second wall.
pub(super) async fn prove_wall(pool: &PgPool) -> anyhow::Result<()> {
    let variable = setting::DATABASE_URL.variable;
    if wall::is_passable(pool).await.context("the database's roles could not be read")? {
        return Ok(());
    }
    bail!(
        "the role of {variable} may not work as `postrider_tenant`, which keeps tenants apart: as the owner of the schema run \
         `GRANT postrider_service TO …` for that role, which includes it"
    )
}

/// Brings the schema to this program's version where that is allowed, and opens the pool. Also returns how to open
/// connections past it, for what needs a session of its own.
pub(super) async fn open(database: &Database) -> anyhow::Result<(PgPool, PgConnectOptions)> {
    prepare_schema(database).await?;
    let options =
        reach(&database.url, setting::DATABASE_URL.variable).await?.application_name(APPLICATION_NAME);
    let direct = match &database.direct_url {
        Some(_) => reach_directly(database).await?.application_name(APPLICATION_NAME),
        None => options.clone(),
    };
    let pool = pool::open(database.way(), database.pool, options).await;
    let pool = pool.context("the database of DATABASE_URL cannot be reached")?;
    Ok((pool, direct))
}

async fn prepare_schema(database: &Database) -> anyhow::Result<()> {
    let upgrade = if database.allow_schema_upgrade { Upgrade::Allow } else { Upgrade::Refuse };
    let options = reach_for_migrations(database).await?.application_name(APPLICATION_NAME);
    let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(ACQUIRE_TIMEOUT);
    let pool =
        pool.connect_with(options).await.context("the database cannot be reached to look at its schema")?;
    let prepared = migrate::prepare(&pool, upgrade).await;
    pool.close().await;
    let versions = prepared?;
    if !versions.is_current() {
        tracing::info!(
            from = versions.applied,
            to = versions.embedded,
            "the schema was brought to this program's version"
        );
    }
    Ok(())
}
