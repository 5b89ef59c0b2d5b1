//! The binary `postrider`: command line, configuration, roles, telemetry, wiring.
//!
//! | module | job |
//! |---|---|
//! | `cli`, `command` | the command line; one file per subcommand |
//! | `configuration`, `environment` | what the operator can set, one file per section |
//! | `database` | reaches the database, or says why not |
//! | `process` | wires database, engine and HTTP surface into one process |
//! | `listener`, `signals`, `telemetry` | the listening socket, how the process ends, logs and metrics |
//! | `development` | what `dev` adds: a private database, secrets, an example |
//! | `client` | a small HTTP client for the health check and the example |

mod build;
mod cli;
mod client;
mod command;
mod configuration;
mod database;
mod development;
mod environment;
mod listener;
mod process;
mod random;
mod signals;
mod telemetry;

use std::process::ExitCode;

use clap::Parser;

use crate::{
    cli::{Command, CommandLine},
    command::{apply, dev, healthcheck, keys, migrate, openapi, schema, serve, simulate},
    configuration::Problems,
    environment::Environment,
};

/// Exit status for a configuration that cannot be used, as for a command line that cannot (clap's choice).
const USAGE: u8 = 2;

/// An event costs some hundred small allocations, many of them freed by another thread: the system's allocator takes a
/// sixth of the server's time for that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let command = CommandLine::parse().command;
    let environment = Environment::of_process();
    let done = match command {
        Command::Dev(arguments) => dev::run(arguments, environment).await,
        Command::Serve(arguments) => serve::run(arguments, environment).await,
        Command::Migrate(arguments) => migrate::run(&arguments, &environment).await,
        Command::Apply(arguments) => match apply::run(&arguments, environment).await {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Schema(arguments) => schema::run(&arguments, &environment).await,
        Command::Keys(arguments) => keys::run(&arguments, environment).await,
        Command::Simulate(arguments) => simulate::run(&arguments, &environment).await,
        Command::Healthcheck(arguments) => healthcheck::run(&arguments, &environment).await,
        Command::Openapi(arguments) => openapi::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The chain, once, for the person at the terminal.
            eprintln!("postrider: {error:#}");
            if error.is::<Problems>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}
