//! Many seeds after each other, and what is told of them.

use std::{collections::BTreeMap, io, ops::Range};

use crate::{
    laboratory::Laboratory,
    run::{self, Verdict},
    watchdog::{self, Watchdog},
};

/// What many runs came to.
#[derive(Debug, Default)]
pub struct Summary {
    pub clean: u64,
    pub broken: Vec<u64>,
    pub counts: BTreeMap<String, u64>,
}

impl Summary {
    pub fn add(&mut self, verdict: &Verdict) {
        match verdict.breach {
            None => self.clean += 1,
            Some(_) => self.broken.push(verdict.seed),
        }
        for (what, count) in &verdict.trace.counts {
            *self.counts.entry(what.clone()).or_default() += count;
        }
    }
}

/// Runs the seeds; tells what is wrong with one at once, and goes on until `most_broken` are.
pub fn run(laboratory: &mut Laboratory, seeds: Range<u64>, most_broken: usize) -> io::Result<Summary> {
    let mut summary = Summary::default();
    let watchdog = Watchdog::start(watchdog::LONGEST_SEED, watchdog::give_up);
    for seed in seeds {
        watchdog.begins(seed);
        let verdict = run::run(laboratory, seed)?;
        summary.add(&verdict);
        if verdict.breach.is_some() {
            eprintln!("{}", describe(&verdict));
            if summary.broken.len() >= most_broken {
                break;
            }
        }
    }
    Ok(summary)
}

/// Lines of a broken run that are shown; a replay shows all.
const SHOWN_LINES: usize = 60;

/// What is wrong with a run, how it came to it, and how to see it again.
pub fn describe(verdict: &Verdict) -> String {
    let Some(breach) = &verdict.breach else {
        return format!("seed {}: sound, trace {:016x}", verdict.seed, verdict.trace.hash());
    };
    let lines = &verdict.trace.lines;
    let shown = lines.get(lines.len().saturating_sub(SHOWN_LINES)..).unwrap_or_default().join("\n");
    format!(
        "seed {seed}: {what}\n{shown}\nseed {seed}: {what}\nSee it again, whole: cargo run -p postrider-simulation -- \
         --seed {seed} --trace",
        seed = verdict.seed,
        what = breach.0,
    )
}
