//! The printed ledger.

use std::{fmt, time::Duration};

use postrider_testkit::ledger::Report;

use crate::{queue::Redelivered, verdict::Bar};

/// What a soak did and found.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub took: Duration,
    pub kills: usize,
    pub stops: usize,
    pub lives_lost: usize,
    pub fast_restarts: usize,
    pub immediate_restarts: usize,
    /// In flight at the kills.
    pub requests_hit: usize,
    pub deliveries_hit: usize,
    pub redelivered: Redelivered,
    pub drain: Duration,
    pub publishing: Publishing,
    pub ledger: Report,
    pub received: usize,
    pub bars: Vec<Bar>,
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
        let Self { publishing, ledger, redelivered, .. } = self;
        let restarts = self.fast_restarts + self.immediate_restarts;
        writeln!(
            formatter,
            "seed {}, {:.0} s, of them {:.1} s to drain",
            self.seed,
            secs(self.took),
            secs(self.drain)
        )?;
        writeln!(
            formatter,
            "faults      {} kills, {} stops ({} of them cost the process its life), {restarts} database restarts \
             ({} fast, {} immediate)",
            self.kills, self.stops, self.lives_lost, self.fast_restarts, self.immediate_restarts
        )?;
        writeln!(
            formatter,
            "hit         {} publishes and {} deliveries in flight at the kills",
            grouped(self.requests_hit),
            grouped(self.deliveries_hit)
        )?;
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
            "receivers   {} requests, {} of them repeated",
            grouped(self.received),
            grouped(ledger.repeated_requests)
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
        )?;
        for bar in &self.bars {
            let Bar { demand, found, demanded, .. } = bar;
            let mark = if bar.is_met() { "ok  " } else { "FAIL" };
            writeln!(formatter, "{mark} {demand}: {} ({} demanded)", grouped(*found), grouped(*demanded))?;
        }
        write!(formatter, "{}", if self.is_sound() { "sound" } else { "NOT SOUND" })
    }
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
