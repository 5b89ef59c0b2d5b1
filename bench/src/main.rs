//! Measures Postrider against what its machine could do at best.
//!
//! | module | role |
//! |---|---|
//! | `arguments` | the command line |
//! | `load` | generator and sink, and the ledger of what happened to each event |
//! | `ceiling` | what the machine could do at best |
//! | `stage` | PostgreSQL, the processes that are measured, what they use |
//! | `site` | one measurement's database, processes, tenant and sink |
//! | `scenario` | what is measured, one file per row of the table |
//! | `rounds` | the order of measurements |
//! | `figures`, `report` | what was found, and how it is shown |
//! | `clock`, `rate` | the one clock; medians and rates |
//!
//! Invariant: no figure without its check. A measurement after which anything accepted was not received, or anything is
//! left in the queue, ends the program with an error.

mod arguments;
mod ceiling;
mod clock;
mod figures;
mod load;
mod rate;
mod report;
mod rounds;
mod scenario;
mod site;
mod stage;

use clap::Parser as _;

use crate::arguments::Arguments;

// One thread: generator and sink have their own, and this one mostly waits.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    rounds::run(Arguments::parse()).await
}
