//! `postrider keys`: replaces the installation's own secrets while it runs.

mod rotate_encryption;
mod rotate_pepper;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use postrider_store::audit::{Actor, By};

use crate::{
    configuration::{self, Database, Recorded, Source},
    environment::Environment,
};

const EXAMPLES: &str = "\
Examples:
  postrider keys rotate-encryption --dry-run     count what is sealed under which key
  postrider keys rotate-encryption               seal everything under POSTRIDER_ENCRYPTION_KEY
  postrider keys rotate-pepper                   store tokens under POSTRIDER_TOKEN_PEPPER from now on
  postrider keys rotate-pepper --finish          let go of POSTRIDER_TOKEN_PEPPER_PREVIOUS

docs/operations.md has the steps. Servers may run all the time; a command that was killed goes on where it was.";

/// Replace the encryption key or the token pepper.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    RotateEncryption(rotate_encryption::Arguments),
    RotatePepper(rotate_pepper::Arguments),
}

/// What every command here takes.
#[derive(Debug, Args)]
struct Shared {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// TOML file with settings; environment variables win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(crate) async fn run(arguments: &Arguments, environment: Environment) -> anyhow::Result<()> {
    #[cfg(debug_assertions)]
    let environment = {
        let mut environment = environment;
        configuration::failpoint::arm(&mut environment)?;
        environment
    };
    match &arguments.command {
        Command::RotateEncryption(arguments) => rotate_encryption::run(arguments, &environment).await,
        Command::RotatePepper(arguments) => rotate_pepper::run(arguments, &environment).await,
    }
}

impl Shared {
    /// Reads the settings of the database and one section more.
    fn read<T>(
        &self,
        environment: &Environment,
        section: impl FnOnce(&mut Source<'_>) -> Result<T, Recorded>,
    ) -> anyhow::Result<(Database, T)> {
        let both = |source: &mut Source<'_>| {
            let (database, other) = (Database::section(source), section(source));
            Ok((database?, other?))
        };
        let read = configuration::read(environment, self.config.as_deref(), both)?;
        Ok(read.with_warnings_printed())
    }
}

fn by() -> By {
    By { actor: Actor::CommandLine, address: None }
}
