//! What a measurement found, and the medians of several.

use crate::{load::latency::Latency, rate};

/// One measurement. What does not apply to it is `None`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures {
    /// Events received by all endpoints together.
    pub(crate) deliveries: u64,
    /// Deliveries from right before the first request to the last receipt, per second.
    pub(crate) per_second: Option<f64>,
    /// What the row's `titles` say it is a ratio to, and its bars what of.
    pub(crate) ratio: Option<f64>,
    /// From the due time to the receipt.
    pub(crate) from_due: Option<Latency>,
    /// From the `202` to the receipt.
    pub(crate) from_accepted: Option<Latency>,
    /// From the due time to the `202`.
    pub(crate) answer: Option<Latency>,
    /// Events sent more than a millisecond after their due time, in the open loop.
    pub(crate) late: u32,
    /// The longest time that one was late.
    pub(crate) latest_ms: f64,
    /// CPU time per delivery of all server processes, from the first request until the queue is empty.
    pub(crate) server_cpu_ms: Option<f64>,
    /// The same of PostgreSQL with all its processes.
    pub(crate) postgres_cpu_ms: Option<f64>,
    /// The same of RabbitMQ, where it is used.
    pub(crate) broker_cpu_ms: Option<f64>,
    /// Time that sessions spent in statements, by all deliveries of the database, warm-up included.
    pub(crate) database_ms: Option<f64>,
    /// The largest `VmHWM` of the server processes, at the end.
    pub(crate) peak_mib: Option<f64>,
    /// The largest `VmRSS` of the server processes, at the end.
    pub(crate) resident_mib: Option<f64>,
    /// How busy all cores were while it was measured, whoever used them: 100 is a machine without rest.
    pub(crate) machine_percent: Option<f64>,
    /// CPU time of the server by wall time, in per cent of one core; where nothing is done.
    pub(crate) idle_server_percent: Option<f64>,
    /// The same of PostgreSQL.
    pub(crate) idle_postgres_percent: Option<f64>,
    /// Requests for what had been received before.
    pub(crate) repeated: u64,
    /// What has no column, each in words.
    pub(crate) notes: Vec<String>,
}

impl Figures {
    /// Server and PostgreSQL together.
    pub(crate) fn cpu_ms(&self) -> Option<f64> {
        Some(self.server_cpu_ms? + self.postgres_cpu_ms?)
    }

    /// Of each figure the median by itself; counts are summed, and of extremes the largest is kept.
    pub(crate) fn medians(runs: &[Self]) -> Self {
        let median = |of: fn(&Self) -> Option<f64>| rate::median(runs.iter().filter_map(of));
        let latency = |of: fn(&Self) -> Option<Latency>| {
            let each = || runs.iter().filter_map(of);
            Some(Latency {
                p50_ms: rate::median(each().map(|latency| latency.p50_ms))?,
                p99_ms: rate::median(each().map(|latency| latency.p99_ms))?,
                max_ms: each().map(|latency| latency.max_ms).fold(0.0, f64::max),
            })
        };
        Self {
            deliveries: runs.iter().map(|run| run.deliveries).sum(),
            per_second: median(|run| run.per_second),
            ratio: median(|run| run.ratio),
            from_due: latency(|run| run.from_due),
            from_accepted: latency(|run| run.from_accepted),
            answer: latency(|run| run.answer),
            late: runs.iter().map(|run| run.late).sum(),
            latest_ms: runs.iter().map(|run| run.latest_ms).fold(0.0, f64::max),
            server_cpu_ms: median(|run| run.server_cpu_ms),
            postgres_cpu_ms: median(|run| run.postgres_cpu_ms),
            broker_cpu_ms: median(|run| run.broker_cpu_ms),
            database_ms: median(|run| run.database_ms),
            peak_mib: median(|run| run.peak_mib),
            resident_mib: median(|run| run.resident_mib),
            machine_percent: median(|run| run.machine_percent),
            idle_server_percent: median(|run| run.idle_server_percent),
            idle_postgres_percent: median(|run| run.idle_postgres_percent),
            repeated: runs.iter().map(|run| run.repeated).sum(),
            notes: runs.iter().flat_map(|run| run.notes.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_taken_figure_by_figure() {
        let run = |per_second, peak_mib, repeated| Figures {
            per_second: Some(per_second),
            peak_mib,
            repeated,
            ..Figures::default()
        };
        let medians = Figures::medians(&[run(3.0, Some(1.0), 1), run(1.0, None, 0), run(2.0, Some(5.0), 1)]);
        assert_eq!((medians.per_second, medians.peak_mib), (Some(2.0), Some(3.0)));
        assert_eq!((medians.repeated, medians.cpu_ms()), (2, None));
    }
}
