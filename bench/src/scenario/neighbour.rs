//! A healthy endpoint by a timetable, alone and then beside a crowd of another tenant's, on the same database and process.
//!
//! The p99 from the due time to the receipt beside the crowd is held against that alone. That time has the publisher's
//! wait in it, as in the open loop; from the `202` alone most receipts cannot be told from nothing, since they come
//! before the publisher has read it. Both are shown. Nothing is changed for the crowd: the server and the endpoints have
//! their defaults.

use super::{Bar, Bench, Bound};
use crate::{figures::Figures, load::latency::Latency};

/// Events of the healthy endpoint.
pub(super) const PER_SECOND: u32 = 200;

/// Measures as often as was asked for, alone and beside the crowd each time.
pub(super) async fn repeat(
    bench: &mut Bench,
    once: impl AsyncFn(&mut Bench) -> anyhow::Result<Figures>,
) -> anyhow::Result<Vec<Figures>> {
    let mut runs = Vec::new();
    for _ in 0..bench.arguments.runs {
        runs.push(once(bench).await?);
    }
    Ok(runs)
}

/// The figures beside the crowd. CPU by delivery says nothing where others are served too, so it is left out.
pub(super) fn compare(alone: &Figures, mut beside: Figures, crowd: &str) -> Figures {
    let say = |latency: Option<Latency>| {
        latency.map_or_else(String::new, |latency| format!("{:.2} / {:.2}", latency.p50_ms, latency.p99_ms))
    };
    let note = format!(
        "alone p50 / p99 from due {} ms, from 202 {} ms; beside it {} ms, {} ms, with {crowd}",
        say(alone.from_due),
        say(alone.from_accepted),
        say(beside.from_due),
        say(beside.from_accepted),
    );
    beside.ratio = beside.from_due.zip(alone.from_due).map(|(beside, alone)| beside.p99_ms / alone.p99_ms);
    (beside.server_cpu_ms, beside.postgres_cpu_ms) = (None, None);
    beside.notes.push(note);
    beside
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    vec![Bar { what: "p99 / alone", found: figures.ratio, bound: Bound::AtMost(1.5) }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_p99_is_held_against_that_alone() {
        let figures = |p99_ms| {
            let from_due = Some(Latency { p50_ms: 1.0, p99_ms, max_ms: 90.0 });
            Figures { from_due, server_cpu_ms: Some(1.0), ..Figures::default() }
        };
        for (beside_ms, expected) in [(5.9, true), (6.1, false)] {
            let found = compare(&figures(4.0), figures(beside_ms), "nobody");
            assert_eq!(bars(&found)[0].is_met(), Some(expected), "{beside_ms}");
            assert_eq!((found.server_cpu_ms, found.notes.len()), (None, 1));
        }
    }
}
