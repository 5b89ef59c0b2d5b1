//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::scenario::Scenario;

const EXAMPLES: &str = "\
Examples:
  make bench                           every row; the whole table
  make bench ARGS=\"burst --runs 1\"     one row, once
  make bench ARGS=\"burst --statements\" and what PostgreSQL spent its time on

Rows that are compared with another one bring it along: split, fanout, limited and open bring burst. The others
measure themselves what they are compared with.

The whole table takes about half an hour on two cores, and 8 GiB of disk while it lasts. In minutes: burst, split,
fanout and limited with their ceilings 4; open and idle 1 each; hanging 4; failing 4; replaying 5; history 3; bloat 4;
transaction 11.
For a first try: make bench ARGS=\"hanging failing replaying history bloat transaction --runs 1 --seconds 5 --history 100000
--bloat 50000 --waiting 10000 --transaction-seconds 10\".";

/// Measures Postrider against what this machine could do at best, and prints one table.
#[derive(Debug, Parser)]
#[command(name = "bench", after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Rows to measure; all if none is named
    #[arg(value_enum)]
    pub(crate) rows: Vec<Scenario>,
    /// How often each row is measured; open, idle, bloat and transaction only once. Those that are compared with the
    /// ceilings are measured each time beside new ones
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Events of a burst
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    pub(crate) events: u32,
    /// Connections of the generator
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4_096))]
    pub(crate) connections: u16,
    /// Deliveries that wait beside the row `hanging`, and dead letters of the row `replaying`
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) waiting: u32,
    /// Endpoints that fail beside the row `failing`
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(10..=10_000))]
    pub(crate) failing: u16,
    /// Finished deliveries of the row `history`
    #[arg(long, default_value_t = 5_000_000, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    pub(crate) history: u32,
    /// Deliveries of the row `bloat`
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    pub(crate) bloat: u32,
    /// How long the transaction of the row `transaction` is open, in seconds
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) transaction_seconds: u32,
    /// How long the rows last that go by time, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) seconds: u32,
    /// Rate of the row `open`, in events per second [default: 40 % of the burst's]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: Option<u32>,
    /// The program to measure [default: `postrider` beside this one]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// A setting of PostgreSQL that is not to be as under `postrider dev`, such as `shared_buffers=128MB`; can be given
    /// several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) postgresql: Vec<(String, String)>,
    /// Print the statements that took most of PostgreSQL's time; loads `pg_stat_statements`
    #[arg(long)]
    pub(crate) statements: bool,
    /// Leave out the ceilings: the ratios to them are missing then
    #[arg(long)]
    pub(crate) no_ceilings: bool,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it has no `=`; give NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
