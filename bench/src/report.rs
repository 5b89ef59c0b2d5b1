//! One table of medians, each figure beside its ratio and its bar, and below it what the columns mean.

use std::fmt;

use crate::{
    ceiling::{Ceilings, Method},
    figures::Figures,
    load::latency::Latency,
    rate,
    scenario::{Bar, Bench, Bound, Scenario},
    site,
    stage::Facts,
};

const HEADER: &str = "\
| row | runs × deliveries | rate /s (each run) | ratio to | from due p50 / p99 ms | from 202 p50 / p99 ms | 202 after \
p50 / p99 ms | CPU ms server + PostgreSQL | database ms | machine busy % | memory peak / end MiB | bars |
|---|---|---|---|---|---|---|---|---|---|---|---|";

const LEGEND: &str = "\
All figures are medians of the runs. Per delivery: CPU ms of the server processes + of PostgreSQL with all its
processes, from the first request until the queue is empty; database ms is the time that sessions spent in statements
(`active_time` of `pg_stat_database`), warm-up included. Machine
busy is the share of all cores' time, generator and sink included. Rate: deliveries by the time from before the first request to
the last receipt. Latencies: \"from due\" to the receipt counts from the timetable in the open loop, also for events sent
late, and from the moment before sending in a burst; \"from 202\" from when the publisher had read the answer, 0 where
the receipt came first; \"202 after\" from due to the answer. Memory is that of the largest server process. After every
measurement it was checked that all that was accepted was received and that none of it was left in the queue; of the
crowds beside the measured tenant, that every delivery was still open.

Ratios: to C; to the burst of the same round, or to the median burst (open loop); of the p99 from due beside a crowd to
that alone, just before, on the same database and process; of the median burst on a long history to the median of those
between them on new databases; of the queue's table or its indexes, whichever grew more, to the size after the warm-up;
of the p99 from 202 at the end of an open transaction to that before it.";

/// Shows what was found.
pub(crate) struct Report<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) method: Option<Method>,
    pub(crate) bench: &'a Bench,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}\n", self.facts)?;
        let arguments = &self.bench.arguments;
        writeln!(
            formatter,
            "Bodies of 300 bytes, an idempotency key with each; {} connections; every row on new databases, after a \
             warm-up of {} events and a checkpoint.\n",
            arguments.connections,
            site::WARM_UP_EVENTS
        )?;
        self.ceilings(formatter)?;
        writeln!(formatter, "{HEADER}")?;
        for (row, runs) in &self.bench.found {
            writeln!(formatter, "{}", line(*row, runs))?;
        }
        for (row, runs) in &self.bench.found {
            remarks(formatter, *row, runs)?;
        }
        write!(formatter, "\n{LEGEND}")
    }
}

impl Report<'_> {
    fn ceilings(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ceilings = &self.bench.ceilings;
        let Some(method) = self.method else { return Ok(()) };
        for (name, of) in [
            (
                "H, requests/s, generator straight to sink",
                (|each| each.requests_per_second) as fn(&Ceilings) -> f64,
            ),
            ("S, events/s, bare SQL", |each| each.events_per_second),
            ("C = 1 / (2/H + 1/S), per second", |each| each.combined_per_second()),
        ] {
            let each = ceilings.iter().map(of);
            writeln!(formatter, "- {name}: {}", rates(each.map(Some)))?;
        }
        writeln!(
            formatter,
            "\nBare SQL was fastest in {method}: chosen by short trials, then measured with as many events as a burst \
             has. Each H and S is the median of three.\n"
        )
    }
}

fn line(row: Scenario, runs: &[Figures]) -> String {
    let (title, of) = row.titles();
    let medians = Figures::medians(runs);
    let ratio = medians.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} {of}"));
    let cells = [
        title.to_owned(),
        runs.first().map_or_else(String::new, |run| format!("{} × {}", runs.len(), run.deliveries)),
        rates(runs.iter().map(|run| run.per_second)),
        ratio,
        latency(medians.from_due),
        latency(medians.from_accepted),
        latency(medians.answer),
        pair(medians.server_cpu_ms, medians.postgres_cpu_ms, " + ", 3),
        number(medians.database_ms, 3),
        number(medians.machine_percent, 0),
        pair(medians.peak_mib, medians.resident_mib, " / ", 0),
        row.bars(&medians).iter().map(bar).collect::<Vec<_>>().join("; "),
    ];
    format!("| {} |", cells.join(" | "))
}

/// What has no column.
fn remarks(formatter: &mut fmt::Formatter<'_>, row: Scenario, runs: &[Figures]) -> fmt::Result {
    let (title, _) = row.titles();
    let medians = Figures::medians(runs);
    let mut remarks = Vec::new();
    if medians.repeated > 0 {
        remarks.push(format!("{} requests were repeated", medians.repeated));
    }
    if row == Scenario::Open {
        remarks.push(format!(
            "{} of {} events were sent more than 1 ms after their due time, the latest by {:.1} ms",
            medians.late, medians.deliveries, medians.latest_ms
        ));
        if let Some(latency) = medians.from_due {
            remarks.push(format!("the slowest delivery took {:.1} ms", latency.max_ms));
        }
    }
    if let Some(percent) = medians.idle_postgres_percent {
        remarks.push(format!("PostgreSQL used {percent:.2} % of a core"));
    }
    if let Some(cpu_ms) = medians.broker_cpu_ms {
        remarks.push(format!("RabbitMQ used {cpu_ms:.3} ms of CPU per delivery"));
    }
    remarks.extend(medians.notes);
    if remarks.is_empty() { Ok(()) } else { writeln!(formatter, "\n{title}: {}.", remarks.join("; ")) }
}

fn bar(bar: &Bar) -> String {
    let (sign, bound) = match bar.bound {
        Bound::AtLeast(bound) => ("≥", bound),
        Bound::AtMost(bound) => ("≤", bound),
    };
    let verdict = match bar.is_met() {
        Some(true) => "met",
        Some(false) => "MISSED",
        None => "not measured",
    };
    format!("{} {} {sign} {bound}: {verdict}", bar.what, number(bar.found, 2))
}

/// The median, and in parentheses each of several values.
fn rates(values: impl Iterator<Item = Option<f64>>) -> String {
    let values: Vec<f64> = values.flatten().collect();
    let Some(median) = rate::median(values.iter().copied()) else { return String::new() };
    if values.len() < 2 {
        return format!("{median:.0}");
    }
    let each: Vec<String> = values.iter().map(|value| format!("{value:.0}")).collect();
    format!("{median:.0} ({})", each.join(", "))
}

fn latency(latency: Option<Latency>) -> String {
    latency.map_or_else(String::new, |latency| format!("{:.1} / {:.1}", latency.p50_ms, latency.p99_ms))
}

fn pair(first: Option<f64>, second: Option<f64>, between: &str, digits: usize) -> String {
    match (first, second) {
        (Some(first), Some(second)) => format!("{first:.digits$}{between}{second:.digits$}"),
        _ => String::new(),
    }
}

fn number(number: Option<f64>, digits: usize) -> String {
    number.map_or_else(|| "–".to_owned(), |number| format!("{number:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_its_medians_and_says_which_bars_it_missed() {
        let run = |per_second, ratio| Figures {
            deliveries: 50_000,
            per_second: Some(per_second),
            ratio: Some(ratio),
            server_cpu_ms: Some(0.1),
            postgres_cpu_ms: Some(0.2),
            ..Figures::default()
        };
        let line = line(Scenario::Burst, &[run(5_000.0, 0.45), run(7_000.0, 0.6), run(6_000.0, 0.55)]);
        for part in [
            "| 3 × 50000 | 6000 (5000, 7000, 6000) | 0.55 C |",
            "| 0.100 + 0.200 |",
            "rate / C 0.55 ≥ 0.5: met; CPU, ms 0.30 ≤ 0.25: MISSED |",
        ] {
            assert!(line.contains(part), "{line}");
        }
    }

    #[test]
    fn a_bar_that_was_not_measured_is_not_met() {
        let found = bar(&Bar { what: "rate / C", found: None, bound: Bound::AtLeast(0.5) });
        assert_eq!(found, "rate / C – ≥ 0.5: not measured");
    }
}
