//! A burst of 1,000,000 events, and what it leaves on disk of the queue's table and indexes. The process that is measured
//! cleans up by its own upkeep, and PostgreSQL's autovacuum beside it, as the table's settings and the server's defaults
//! have it; the benchmark does not.
//!
//! Sizes are those of `pg_table_size` and `pg_indexes_size`. At first: after the 5,000 deliveries of the warm-up, when
//! the queue is empty. At last: once both are within twice that, or two minutes after the queue is empty again; in the
//! meantime nothing is published. The ratio is the larger one of the two.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::time::sleep;

use super::{Bar, Bench, Bound};
use crate::{
    clock,
    figures::Figures,
    load::generator::Pace,
    rate,
    site::{Shape, Site},
    stage::{Database, QueueSize, Role},
};

const MOST: f64 = 2.0;
/// Longest time to wait for the sizes to come back. Upkeep needs about 20 seconds for its last clean-up, and then one pass
/// of two seconds per index; where somebody's transaction is in its way it pauses for up to two minutes.
const LIMIT_S: f64 = 120.0;
const PAUSE: Duration = Duration::from_millis(250);

pub(super) async fn run(bench: &mut Bench) -> anyhow::Result<Figures> {
    let (connections, events) = (bench.arguments.connections, bench.arguments.bloat);
    let shape = Shape { roles: &[Role::All], endpoints: 1, connections, events, ..Shape::default() };
    let mut site = Site::open(&mut bench.stage, shape).await?;
    let mut connection = PgConnection::connect(&site.database().url).await?;
    let first = Database::queue_size(&mut connection).await?;
    let mut peak = first;
    let figures = tokio::select! {
        figures = site.measure(&bench.stage, events, Pace::Closed) => figures?,
        Err(error) = keep_peak(&mut connection, &mut peak) => return Err(error),
    };

    let empty = Database::queue_size(&mut connection).await?;
    peak = peak.max(empty);
    let (last, back) = come_back(&mut connection, first).await?;
    let note = format!(
        "table + indexes took {first} KiB at first, {peak} at most, {empty} when the queue was empty, {last} at last; \
         {} and {}; {} clean-ups of the queue",
        tell("the table", back.0),
        tell("the indexes", back.1),
        clean_ups(&mut connection).await?,
    );
    connection.close().await?;
    let database_ms = Some(site.close(&mut bench.stage, bench.arguments.statements).await?);
    Ok(Figures { ratio: Some(last.times(first)), database_ms, notes: vec![note], ..figures })
}

pub(super) fn bars(figures: &Figures) -> Vec<Bar> {
    vec![Bar { what: "size / at first", found: figures.ratio, bound: Bound::AtMost(MOST) }]
}

/// Looks until it is dropped; ends only with an error.
async fn keep_peak(connection: &mut PgConnection, peak: &mut QueueSize) -> anyhow::Result<()> {
    loop {
        *peak = peak.max(Database::queue_size(connection).await?);
        sleep(PAUSE).await;
    }
}

/// Waits until both sizes are back, up to the limit; tells them, and how long table and indexes took.
async fn come_back(
    connection: &mut PgConnection,
    first: QueueSize,
) -> anyhow::Result<(QueueSize, (Option<f64>, Option<f64>))> {
    let emptied_ns = clock::now_ns();
    let (mut table, mut indexes) = (None, None);
    loop {
        let now = Database::queue_size(connection).await?;
        let waited_s = rate::real(clock::now_ns() - emptied_ns) / 1e9;
        let is_back = |size, first| times(size, first) <= MOST;
        table = table.or_else(|| is_back(now.table_bytes, first.table_bytes).then_some(waited_s));
        indexes = indexes.or_else(|| is_back(now.indexes_bytes, first.indexes_bytes).then_some(waited_s));
        if now.times(first) <= MOST || waited_s > LIMIT_S {
            return Ok((now, (table, indexes)));
        }
        sleep(PAUSE).await;
    }
}

fn tell(what: &str, back_after_s: Option<f64>) -> String {
    back_after_s.map_or_else(
        || format!("{what} did not come back"),
        |seconds| format!("{what} came back after {seconds:.1} s"),
    )
}

fn times(bytes: u64, first: u64) -> f64 {
    rate::real(bytes) / rate::real(first.max(1))
}

/// Those of upkeep and those of autovacuum.
async fn clean_ups(connection: &mut PgConnection) -> anyhow::Result<i64> {
    let query = sqlx::query_scalar(
        "SELECT vacuum_count + autovacuum_count FROM pg_stat_all_tables
          WHERE relid = 'postrider.delivery_queue'::regclass",
    );
    Ok(query.fetch_one(connection).await?)
}

impl QueueSize {
    /// How many times as large as another: the larger one of table and indexes.
    fn times(self, first: Self) -> f64 {
        times(self.table_bytes, first.table_bytes).max(times(self.indexes_bytes, first.indexes_bytes))
    }

    /// Of each the larger.
    fn max(self, other: Self) -> Self {
        Self {
            table_bytes: self.table_bytes.max(other.table_bytes),
            indexes_bytes: self.indexes_bytes.max(other.indexes_bytes),
        }
    }
}

impl std::fmt::Display for QueueSize {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} + {}", self.table_bytes / 1024, self.indexes_bytes / 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_growth_counts() {
        let size = |table_bytes, indexes_bytes| QueueSize { table_bytes, indexes_bytes };
        for (last, expected) in [(size(100, 100), 1.0), (size(300, 100), 3.0), (size(100, 250), 2.5)] {
            assert!((last.times(size(100, 100)) - expected).abs() < 1e-9, "{last}");
        }
    }
}
