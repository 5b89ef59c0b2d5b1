//! Many seeds after each other, and what is told of them.

use std::{collections::BTreeMap, io, ops::Range};

use crate::{
    laboratory::Laboratory,
    run::{self, Verdict},
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

    /// What came of the seeds, in one sentence.
    pub fn told(&self) -> String {
        let clean = counted(self.clean);
        let [first, others @ ..] = self.broken.as_slice() else { return format!("{clean} clean.") };
        let named = others.iter().fold(first.to_string(), |named, seed| format!("{named}, {seed}"));
        let verb = if others.is_empty() { "is" } else { "are" };
        format!("{clean} clean, {} {verb} not: {named}", self.broken.len())
    }
}

fn counted(seeds: u64) -> String {
    if seeds == 1 { "1 seed is".to_owned() } else { format!("{seeds} seeds are") }
}

/// Runs the seeds; tells what is wrong with one at once, and goes on until `most_broken` are.
pub fn run(laboratory: &mut Laboratory, seeds: Range<u64>, most_broken: usize) -> io::Result<Summary> {
    let mut summary = Summary::default();
    for seed in seeds {
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

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn broken_seeds_are_named() {
        for (clean, broken, expected) in [
            (100, vec![], "100 seeds are clean."),
            (1, vec![], "1 seed is clean."),
            (99, vec![7], "99 seeds are clean, 1 is not: 7"),
            (98, vec![17, 23], "98 seeds are clean, 2 are not: 17, 23"),
            (0, vec![0], "0 seeds are clean, 1 is not: 0"),
        ] {
            assert_eq!(Summary { clean, broken, ..Summary::default() }.told(), expected);
        }
    }
}
