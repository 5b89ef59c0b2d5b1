//! `postrider schema inspect`: reads the schema's version and changes nothing.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use postrider_store::migrate;
use serde_json::json;
use sqlx::PgPool;

use crate::{
    configuration::{self, Database, setting},
    database::reach,
    environment::Environment,
};

const EXAMPLES: &str = "\
Examples:
  postrider schema inspect
  postrider schema inspect --json | jq .current";

/// Look at the database schema.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Inspect(InspectArguments),
}

/// Show which version the schema has and which one this program needs; changes nothing.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct InspectArguments {
    /// Print JSON: {"applied": number or null, "needed": number, "current": true or false}
    #[arg(long)]
    json: bool,
    /// TOML file with settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) async fn run(arguments: &Arguments, environment: &Environment) -> anyhow::Result<()> {
    let Command::Inspect(arguments) = &arguments.command;
    let read = configuration::read(environment, arguments.config.as_deref(), Database::section)?;
    let database = read.with_warnings_printed();
    let options = reach(&database.url, setting::DATABASE_URL.variable).await?;
    let pool = PgPool::connect_with(options).await.context("the database cannot be reached")?;
    let versions = migrate::inspect(&pool).await?;
    pool.close().await;
    if arguments.json {
        let shown = json!({ "applied": versions.applied, "needed": versions.embedded, "current": versions.is_current() });
        println!("{shown}");
        return Ok(());
    }
    let needed = versions.embedded;
    let said = match versions.applied {
        None => format!("The database holds no schema; this program needs version {needed}."),
        Some(version) => format!("The schema has version {version}; this program needs {needed}."),
    };
    println!("{said}");
    Ok(())
}
