//! The order of measurements: in every round the ceilings, then each row that is compared with them, so that a machine
//! that slows down slows both; then what goes by time or compares itself. The report comes at the end, also of what was found before
//! something failed.

use std::{collections::BTreeMap, env, path::PathBuf};

use anyhow::Context as _;
use clap::ValueEnum as _;

use crate::{
    arguments::Arguments,
    ceiling::{self, Ceilings, Method},
    rate,
    report::Report,
    scenario::{Bench, Scenario},
    stage::Stage,
};

/// Times that each ceiling is measured in a round, of which the median counts: one alone lasts a second, and differs from
/// the next by a quarter.
const CEILING_TRIES: usize = 3;

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => beside_this_one()?,
    };
    let mut stage = Stage::start(program, arguments.postgresql.clone(), arguments.statements).await?;
    let facts = stage.facts().await?;
    let rows = rows(&arguments);
    let mut bench = Bench { arguments, stage, ceilings: Vec::new(), found: BTreeMap::new() };
    let method = if bench.arguments.no_ceilings || !rows.iter().any(|row| row.is_repeated()) {
        None
    } else {
        Some(ceiling::best_method(&mut bench.stage).await?)
    };
    let measured = measure(&mut bench, &rows, method).await;
    println!("{}", Report { facts: &facts, method, bench: &bench });
    bench.stage.stop().await?;
    measured
}

async fn measure(bench: &mut Bench, rows: &[Scenario], method: Option<Method>) -> anyhow::Result<()> {
    let (repeated, once): (Vec<Scenario>, Vec<Scenario>) = rows.iter().partition(|row| row.is_repeated());
    let rounds = if repeated.is_empty() { 0 } else { bench.arguments.runs };
    for round in 1..=rounds {
        if let Some(method) = method {
            let ceilings = ceilings(bench, method).await?;
            eprintln!(
                "round {round}: H {:.0} requests/s, S {:.0} events/s, C {:.0}/s",
                ceilings.requests_per_second,
                ceilings.events_per_second,
                ceilings.combined_per_second()
            );
            bench.ceilings.push(ceilings);
        }
        for row in &repeated {
            take(bench, *row).await?;
        }
    }
    for row in once {
        take(bench, row).await?;
    }
    Ok(())
}

async fn take(bench: &mut Bench, row: Scenario) -> anyhow::Result<()> {
    let (title, _) = row.titles();
    let found = row.run(bench).await.with_context(|| format!("measuring `{title}`"))?;
    for figures in &found {
        let rate = figures.per_second.map_or_else(String::new, |rate| format!("{rate:.0} deliveries/s"));
        eprintln!("  {title}: {rate}");
    }
    bench.found.entry(row).or_default().extend(found);
    Ok(())
}

async fn ceilings(bench: &mut Bench, method: Method) -> anyhow::Result<Ceilings> {
    let (mut requests, mut rows) = (Vec::new(), Vec::new());
    for _ in 0..CEILING_TRIES {
        requests.push(ceiling::requests_per_second(bench.arguments.connections).await?);
        let events = bench.arguments.events;
        rows.push(ceiling::events_per_second(&mut bench.stage, method, events).await?);
    }
    let (requests, rows) = (rate::median(requests), rate::median(rows));
    let (requests_per_second, events_per_second) = requests.zip(rows).context("no ceiling was measured")?;
    Ok(Ceilings { requests_per_second, events_per_second })
}

/// What was asked for, and what it is compared with, in the order of the table.
fn rows(arguments: &Arguments) -> Vec<Scenario> {
    let asked = |row: &Scenario| arguments.rows.is_empty() || arguments.rows.contains(row);
    let needs_burst = Scenario::value_variants().iter().any(|row| asked(row) && row.needs_burst());
    let wanted = |row: &&Scenario| asked(row) || needs_burst && **row == Scenario::Burst;
    Scenario::value_variants().iter().filter(wanted).copied().collect()
}

fn beside_this_one() -> anyhow::Result<PathBuf> {
    let this = env::current_exe()?;
    Ok(this.parent().context("this program has no directory")?.join("postrider"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn rows_bring_along_what_they_are_compared_with() {
        for (asked, expected) in [
            (vec![], Scenario::value_variants().to_vec()),
            (vec!["idle"], vec![Scenario::Idle]),
            (vec!["open", "idle"], vec![Scenario::Burst, Scenario::Open, Scenario::Idle]),
            (vec!["burst"], vec![Scenario::Burst]),
        ] {
            let arguments = Arguments::try_parse_from(["bench"].iter().chain(&asked)).unwrap();
            assert_eq!(rows(&arguments), expected, "{asked:?}");
        }
    }
}
