//! The printed ledger.

use std::{collections::BTreeMap, fmt, time::Duration};

use postrider_testkit::ledger::Report;

use crate::{chaos::Faults, queue::Redelivered, repeats::Repeats, verdict::Bar};

/// What a soak did and found.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub took: Duration,
    pub faults: Faults,
    pub hit: Hit,
    pub redelivered: Redelivered,
    pub drain: Duration,
    pub publishing: Publishing,
    pub ledger: Report,
    pub received: usize,
    pub repeats: Repeats,
    pub bars: Vec<Bar>,
}

/// What was in flight when something happened.
#[derive(Debug, Clone, Copy)]
pub struct Hit {
    /// Requests of publishers, at the kills.
    pub requests: usize,
    /// Attempts at the kills of processes.
    pub at_kills: usize,
    /// At the freezes of processes.
    pub at_stops: usize,
    /// At the restarts of the database.
    pub at_restarts: usize,
    /// All attempts that any of these hit, each once.
    pub attempts: usize,
}

/// How publishers fared.
#[derive(Debug, Clone, Copy)]
pub struct Publishing {
    pub unavailable: u64,
    pub refused: u64,
    pub cut: u64,
    pub unanswered: u64,
    pub longest_wait: Duration,
}

impl Outcome {
    pub fn is_sound(&self) -> bool {
        self.bars.iter().all(Bar::is_met)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (took, drain) = (secs(self.took), secs(self.drain));
        writeln!(formatter, "seed {}, {took:.0} s, of them {drain:.1} s to drain", self.seed)?;
        write_faults(formatter, &self.faults)?;
        write_hits(formatter, self)?;
        write_ends(formatter, self)?;
        for bar in &self.bars {
            let Bar { demand, found, demanded, is_bound, .. } = bar;
            let mark = if bar.is_met() { "ok  " } else { "FAIL" };
            let (found, demanded) = (grouped(*found), grouped(*demanded));
            let wanted =
                if *is_bound { format!("at most {demanded}") } else { format!("{demanded} demanded") };
            writeln!(formatter, "{mark} {demand}: {found} ({wanted})")?;
        }
        write!(formatter, "{}", if self.is_sound() { "sound" } else { "NOT SOUND" })
    }
}

fn write_faults(formatter: &mut fmt::Formatter<'_>, faults: &Faults) -> fmt::Result {
    let Faults { kills, stops, lives_lost, fast_restarts, immediate_restarts, emptied, frozen } = faults;
    let restarts = fast_restarts + immediate_restarts;
    writeln!(
        formatter,
        "faults      {} kills ({}), {stops} stops ({lives_lost} of them cost the process its life), {restarts} database \
         restarts ({fast_restarts} fast, {immediate_restarts} immediate)",
        faults.kills(),
        listed(kills),
    )?;
    if !emptied.is_empty() || !frozen.is_empty() {
        writeln!(formatter, "            emptied: {}; frozen: {}", listed(emptied), listed(frozen))?;
    }
    Ok(())
}

fn write_hits(formatter: &mut fmt::Formatter<'_>, outcome: &Outcome) -> fmt::Result {
    let Hit { requests, at_kills, at_stops, at_restarts, attempts } = outcome.hit;
    writeln!(
        formatter,
        "hit         {} publishes and {} deliveries in flight at the kills, {} deliveries at the stops, {} at the \
         database restarts; {} attempts in all",
        grouped(requests),
        grouped(at_kills),
        grouped(at_stops),
        grouped(at_restarts),
        grouped(attempts)
    )
}

fn write_ends(formatter: &mut fmt::Formatter<'_>, outcome: &Outcome) -> fmt::Result {
    let Outcome { publishing, ledger, redelivered, repeats, .. } = outcome;
    writeln!(
        formatter,
        "publishers  {} events accepted, {} answers repeated; tries that failed: {} answered 503, {} refused, \
         {} cut, {} unanswered; the longest wait {:.1} s",
        grouped(ledger.events),
        grouped(ledger.repeated_answers),
        grouped(publishing.unavailable),
        grouped(publishing.refused),
        grouped(publishing.cut),
        grouped(publishing.unanswered),
        secs(publishing.longest_wait)
    )?;
    writeln!(
        formatter,
        "receivers   {} requests, {} of them repeated: {} since the receiver had failed, {} on a new connection since it \
         had closed the old one, {} since a fault had cut off the attempt before",
        grouped(outcome.received),
        grouped(ledger.repeated_requests),
        grouped(repeats.after_failure),
        grouped(repeats.reconnected),
        grouped(repeats.after_interruption)
    )?;
    writeln!(
        formatter,
        "database    {} delivered, {} dead letters, {} open; {} attempts, {} of them interrupted",
        grouped(ledger.delivered),
        grouped(ledger.dead_lettered),
        grouped(ledger.open),
        grouped(ledger.attempts),
        grouped(ledger.interrupted_attempts)
    )?;
    writeln!(
        formatter,
        "redelivered {} after a kill: {:.1} s in the median, {:.1} s at the longest",
        grouped(redelivered.count),
        secs(redelivered.median),
        secs(redelivered.longest)
    )
}

/// How often what, in words.
fn listed(counts: &BTreeMap<&str, usize>) -> String {
    let each: Vec<String> = counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
    if each.is_empty() { "none".to_owned() } else { each.join(", ") }
}

fn secs(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

/// A number with its thousands apart.
fn grouped(number: impl fmt::Display) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 2);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1_000, "1,000"), (50_000, "50,000"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
    }
}
