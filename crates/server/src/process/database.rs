//! Opens the database: the schema first, then the pool.

use std::time::Duration;

use anyhow::{Context as _, bail};
use postrider_core::seal::{Context, Purpose};
use postrider_store::{
    installation::{self, Pepper},
    migrate::{self, Upgrade},
    wall,
};
use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::{
    configuration::{Database, Secrets, setting},
    database::{reach, reach_for_migrations},
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

/// Proves that this process has the pepper the stored tokens were hashed with.
pub(super) async fn prove_pepper(pool: &PgPool, secrets: &Secrets) -> Result<(), installation::Error> {
    let (generation, fingerprint) = (secrets.pepper_generation, secrets.pepper.fingerprint());
    installation::prove_pepper(pool, Pepper { generation, fingerprint }).await
}

/// Proves that this process can open what the others sealed: with a wrong key it could sign nothing.
pub(super) async fn prove_encryption_key(pool: &PgPool, secrets: &Secrets) -> anyhow::Result<()> {
    let Some(sealed) = installation::newest_secret(pool).await? else { return Ok(()) };
    let purpose = Purpose::SigningSecret;
    let context = Context { purpose, tenant: sealed.tenant_id, row: sealed.signing_key_id.as_uuid() };
    let opened = secrets.keyring.open(&context, &sealed.secret).map(drop);
    let (variable, previous) = (setting::ENCRYPTION_KEY.variable, setting::ENCRYPTION_KEY_PREVIOUS.variable);
    opened.with_context(|| {
        format!(
            "the newest stored secret does not open with {variable}: set it to this installation's key, or during a \
             rotation set {previous} to the old one"
        )
    })
}

/// Brings the schema to this program's version where that is allowed, and opens the pool. Also returns how to open
/// connections past it, for what needs a session of its own.
pub(super) async fn open(database: &Database) -> anyhow::Result<(PgPool, PgConnectOptions)> {
    prepare_schema(database).await?;
    let options =
        reach(&database.url, setting::DATABASE_URL.variable).await?.application_name(APPLICATION_NAME);
    let direct = match &database.direct_url {
        Some(url) => {
            reach(url, setting::DIRECT_DATABASE_URL.variable).await?.application_name(APPLICATION_NAME)
        }
        None => options.clone(),
    };
    let pool = PgPoolOptions::new().max_connections(database.pool).acquire_timeout(ACQUIRE_TIMEOUT);
    let pool = pool.connect_with(options).await.context("the database of DATABASE_URL cannot be reached")?;
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
