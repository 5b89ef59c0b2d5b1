//! The command line.

use clap::{Parser, Subcommand};

use crate::{
    build,
    command::{apply, dev, healthcheck, keys, migrate, openapi, schema, serve, simulate},
};

const EXAMPLES: &str = "\
Examples:
  postrider dev                      try everything on this machine, nothing to set up
  postrider serve --role all         accept and deliver, on the PostgreSQL of DATABASE_URL
  postrider healthcheck              exit 0 when the local server is ready

Settings come from environment variables and, secrets apart, from a file given with --config.";

/// Accepts events over HTTP, stores them durably, and delivers them to webhooks at least once.
#[derive(Debug, Parser)]
#[command(name = "postrider", version = build::TEXT.as_str(), after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Dev(dev::Arguments),
    Serve(serve::Arguments),
    Migrate(migrate::Arguments),
    Apply(apply::Arguments),
    Schema(schema::Arguments),
    Keys(keys::Arguments),
    Simulate(simulate::Arguments),
    Healthcheck(healthcheck::Arguments),
    Openapi(openapi::Arguments),
}
