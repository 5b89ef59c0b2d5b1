//! Compares how tenants can be placed in cells, over one simulated year, and prints one table.

use clap::Parser;
use postrider_simulation::placement::{rebalance::Bounds, report::report, tenants::Population, year::Year};

/// What a cell has room for is in `postrider_simulation::placement::demand`.
#[derive(Debug, Parser)]
#[command(
    about = "Simulates a year of tenants in cells, each with its own database; everything follows from the seed"
)]
struct Arguments {
    /// Tenants made in the course of the year
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tenants: u32,
    /// Cells at the beginning; one is added halfway, and the first is lost after three quarters
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=100))]
    cells: u32,
    /// How many of them are worth two
    #[arg(long, default_value_t = 0)]
    doubled: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 52, value_parser = clap::value_parser!(u32).range(1..=520))]
    weeks: u32,
    /// Days for which events and history are kept
    #[arg(long, default_value_t = 7.0)]
    kept_days: f64,
    /// How full all cells together are in the last week, in percent of those at the beginning
    #[arg(long, default_value_t = 60.0)]
    fill: f64,
    /// How full a cell may be, in percent
    #[arg(long, default_value_t = 70.0)]
    limit: f64,
    /// Tenants that may move in a week
    #[arg(long, default_value_t = 10)]
    moves: usize,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let weights: Vec<_> =
        (0..arguments.cells).map(|cell| if cell < arguments.doubled { 2.0 } else { 1.0 }).collect();
    let population = Population {
        seed: arguments.seed,
        tenants: usize::try_from(arguments.tenants)?,
        weeks: arguments.weeks,
        kept_days: arguments.kept_days,
        total: weights.iter().sum::<f64>() * arguments.fill / 100.0,
    };
    let bounds = Bounds { limit: arguments.limit / 100.0, most_moves: arguments.moves };
    let year = Year { seed: arguments.seed, weeks: arguments.weeks, weights, bounds };
    println!("{}", report(&population, &year));
    Ok(())
}
