//! `postrider migrate`: brings the schema to this program's version.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use postrider_store::migrate::{self, Upgrade};
use sqlx::PgPool;

use crate::{
    configuration::{self, Database},
    database::reach_for_migrations,
    environment::Environment,
};

const EXAMPLES: &str = "\
Examples:
  postrider migrate                       create the schema in an empty database
  postrider migrate --allow-upgrade       upgrade an existing one; back it up first

Uses POSTRIDER_MIGRATION_DATABASE_URL where it is set, else DATABASE_URL.";

/// Create the database schema, or upgrade it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Upgrade an existing schema, as `POSTRIDER_ALLOW_SCHEMA_UPGRADE=1` does
    #[arg(long)]
    allow_upgrade: bool,
    /// TOML file with settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) async fn run(arguments: &Arguments, environment: &Environment) -> anyhow::Result<()> {
    let read = configuration::read(environment, arguments.config.as_deref(), Database::section)?;
    let database = read.with_warnings_printed();
    let is_allowed = arguments.allow_upgrade || database.allow_schema_upgrade;
    let upgrade = if is_allowed { Upgrade::Allow } else { Upgrade::Refuse };
    let options = reach_for_migrations(&database).await?;
    let pool = PgPool::connect_with(options).await.context("the database cannot be reached")?;
    let versions = migrate::prepare(&pool, upgrade).await?;
    pool.close().await;
    let needed = versions.embedded;
    let said = match versions.applied {
        Some(version) if version == needed => format!("The schema is at version {version} already."),
        Some(version) => format!("The schema was upgraded from version {version} to {needed}."),
        None => format!("The schema was created at version {needed}."),
    };
    println!("{said}");
    Ok(())
}
