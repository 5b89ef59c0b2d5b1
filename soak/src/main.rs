//! `soak`: kills, freezes and restarts Postrider under load, prints the ledger, and fails unless it is sound.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use postrider_soak::{Ended, Options, Shape, run};
use tokio::signal::unix::{SignalKind, signal};

/// Exit status of a soak that came to no verdict.
const NO_VERDICT: u8 = 2;
/// Exit status of a soak that was interrupted, as of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// Runs several `postrider serve` on one database under load, kills and freezes them and restarts the database, and checks
/// that nothing was lost
#[derive(Debug, Parser)]
struct Arguments {
    /// The program to put to the test
    #[arg(long, value_name = "PROGRAM")]
    postrider: PathBuf,
    /// Two processes that accept and two that deliver, with RabbitMQ and Redis, which are killed, emptied and frozen, too;
    /// without it two processes that do everything
    #[arg(long)]
    fleet: bool,
    /// How many events to publish
    #[arg(long, default_value_t = 50_000)]
    events: usize,
    /// How often to kill something
    #[arg(long, default_value_t = 200)]
    kills: usize,
    /// What chance is drawn from; a new one unless given
    #[arg(long)]
    seed: Option<u64>,
    /// Longest time for all of it
    #[arg(long, default_value_t = 15)]
    minutes: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { postrider, fleet, events, kills, seed, minutes } = Arguments::parse();
    let seed = seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
    let longest = Duration::from_secs(minutes.saturating_mul(60));
    let shape = if fleet { Shape::Fleet } else { Shape::Pair };
    let options = Options { postrider, shape, events, kills, seed, longest };
    println!("seed {seed}: {events} events, {kills} kills");
    let ended = tokio::select! {
        ended = run(&options) => ended,
        () = interrupted() => return ExitCode::from(INTERRUPTED),
    };
    conclude(&ended)
}

fn conclude(ended: &Ended) -> ExitCode {
    let code = match &ended.result {
        Ok(outcome) => {
            println!("{outcome}");
            if outcome.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("no verdict: {}", chain(error));
            ExitCode::from(NO_VERDICT)
        }
    };
    if let Some(kept) = &ended.kept {
        let kept = kept.display();
        println!(
            "the evidence is in {kept}: logs of the processes in logs, the database with its log in database"
        );
    }
    code
}

fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// The interrupt key, or a request to end.
async fn interrupted() {
    match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(mut interrupt), Ok(mut terminate)) => {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("signals cannot be watched: {error}");
            std::future::pending::<()>().await;
        }
    }
}
