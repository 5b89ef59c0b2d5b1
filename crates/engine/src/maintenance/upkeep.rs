//! The queue's table and indexes stay as small as what is in them. Rows live for milliseconds and autovacuum looks once a
//! minute, so under load this job frees the room of dead rows every few seconds. When the load is over it gives empty pages
//! back, and builds anew the indexes that have grown: a B-tree never shrinks by itself.
//!
//! Invariant: nothing waits for this job, and it waits for nobody for long. What it cannot do now it leaves for later, or to
//! autovacuum: a pass does one thing, one process does it at a time, and a transaction that stays open makes it give up.

use std::time::Duration;

use postrider_store::{
    Error,
    lanes::Lane,
    upkeep::{self, Index, Look, Truncate},
};
use sqlx::PgConnection;

use super::{AsyncJob, Pace, Schedule};
use crate::worker::Worker;

/// The interval is longer than the second by which PostgreSQL's counters lag: between two passes they tell a load from rest.
pub const SCHEDULE: Schedule =
    Schedule { name: "upkeep", lane: Lane::Upkeep, interval: Duration::from_secs(2), rest_factor: 10 };

/// Dead rows after which their room is freed at once: two seconds' worth of a full load, some 5 MiB.
const MANY_DEAD: u64 = 20_000;
/// Fewer than these are left to autovacuum; so many have their room freed when the last time is [`PATIENCE`] ago.
const SOME_DEAD: u64 = 1_000;
const PATIENCE: Duration = Duration::from_secs(16);
const PASSES_OF_PATIENCE: u64 = PATIENCE.as_secs() / SCHEDULE.interval.as_secs();

/// What a row takes in the table, with the room that is kept free beside it, and at most in an index.
const ROW_BYTES: u64 = 300;
const ENTRY_BYTES: u64 = 64;
/// A table or an index may be so many times as large as its rows need, and so large in any case.
const MOST_TIMES: u64 = 4;
const SMALL_TABLE_BYTES: u64 = 1 << 20;
const SMALL_INDEX_BYTES: u64 = 128 << 10;

/// No index is rebuilt while more rows than these are there, or the table is larger than that: it would be read twice.
const MOST_LIVE: u64 = 50_000;
const MOST_TABLE_BYTES: u64 = 64 << 20;
/// Nor while a transaction has been open for so long: it would be waited for.
const LONG_TRANSACTION: Duration = Duration::from_secs(1);

/// After a clean-up that freed nothing, doubled each time up to the longest. Mostly somebody's transaction is open.
const SHORTEST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// After a rebuild that gave up or made nothing smaller.
const REBUILD_PAUSE: Duration = Duration::from_secs(60);

/// Who cleans the queue's table up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleanUp {
    /// This job, and autovacuum beside it.
    Upkeep,
    /// Autovacuum alone: where the engine's connections share sessions, the job's lock would be lost.
    AutovacuumAlone,
}

#[derive(Debug, Default)]
pub struct Upkeep {
    /// Rows deleted until the last pass, by PostgreSQL's count.
    deleted: Option<u64>,
    vacuumed_at: Option<Duration>,
    /// None after a clean-up that helped.
    vacuum_pause: Duration,
    /// No rebuild before this time.
    rebuild_from: Duration,
    /// It was told that this role may not.
    has_told: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Step<'l> {
    Rest,
    Vacuum(Truncate),
    DropLeftover(&'l Index),
    Rebuild(&'l Index),
}

impl<T: Send + Sync + 'static> AsyncJob<T> for Upkeep {
    async fn run_once(&mut self, worker: &Worker<T>, connection: &mut PgConnection) -> Result<Pace, Error> {
        self.pass(worker.clock.monotonic(), connection).await?;
        Ok(Pace::Done)
    }
}

impl Upkeep {
    /// At most one step, unless another process is at it.
    pub async fn pass(&mut self, now: Duration, connection: &mut PgConnection) -> Result<(), Error> {
        if !upkeep::try_begin(connection).await? {
            return Ok(());
        }
        let passed = self.step(now, connection).await;
        // With a lost connection its session ends, and the lock with it.
        if !matches!(&passed, Err(error) if error.is_lost()) {
            upkeep::end(connection).await?;
        }
        passed
    }

    async fn step(&mut self, now: Duration, connection: &mut PgConnection) -> Result<(), Error> {
        let look = upkeep::look(connection).await?;
        if !look.is_owner {
            if !std::mem::replace(&mut self.has_told, true) {
                tracing::info!("this role does not own the queue's table, which is left to autovacuum");
            }
            return Ok(());
        }
        let step = self.next(&look, now);
        self.deleted = Some(look.deleted);
        match step {
            Step::Rest => Ok(()),
            Step::Vacuum(truncate) => {
                let is_done = has_ended(upkeep::vacuum(connection, truncate).await)?;
                let after = upkeep::look(connection).await?;
                self.note_vacuum(is_done && has_helped(&look, &after), now);
                Ok(())
            }
            // Both would wait for it in vain.
            Step::DropLeftover(_) | Step::Rebuild(_)
                if upkeep::is_held_up(connection, LONG_TRANSACTION).await? =>
            {
                Ok(())
            }
            Step::DropLeftover(index) => {
                if has_ended(upkeep::drop_leftover(connection, &index.name).await)? {
                    tracing::info!(index = %index.name, "what an interrupted rebuild left was dropped");
                } else {
                    self.put_off(index, now);
                }
                Ok(())
            }
            Step::Rebuild(index) => self.rebuild(connection, index, now).await,
        }
    }

    async fn rebuild(
        &mut self,
        connection: &mut PgConnection,
        index: &Index,
        now: Duration,
    ) -> Result<(), Error> {
        if !has_ended(upkeep::rebuild(connection, &index.name).await)? {
            self.put_off(index, now);
            return Ok(());
        }
        metrics::counter!("postrider_rebuilt_indexes_total").increment(1);
        let after = upkeep::look(connection).await?;
        let rebuilt = after.indexes.iter().find(|rebuilt| rebuilt.name == index.name);
        let bytes = rebuilt.map_or(0, |rebuilt| rebuilt.bytes);
        tracing::debug!(index = %index.name, before_bytes = index.bytes, bytes, "an index was rebuilt");
        if bytes > index.bytes / 2 {
            self.rebuild_from = now + REBUILD_PAUSE;
        }
        Ok(())
    }

    fn put_off(&mut self, index: &Index, now: Duration) {
        tracing::info!(index = %index.name, "work on an index was put off: it would have waited for a transaction");
        self.rebuild_from = now + REBUILD_PAUSE;
    }

    fn note_vacuum(&mut self, has_helped: bool, now: Duration) {
        self.vacuumed_at = Some(now);
        self.vacuum_pause = if has_helped {
            Duration::ZERO
        } else {
            (self.vacuum_pause * 2).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
        };
    }

    /// What the table needs most.
    fn next<'l>(&self, look: &'l Look, now: Duration) -> Step<'l> {
        // After the start it is not known how busy the table is; then it is taken for busy.
        let passed_through = look.deleted.saturating_sub(self.deleted.unwrap_or_default());
        // Under load, pages that were given back would be asked for again at once.
        let soon = look.live + passed_through * PASSES_OF_PATIENCE;
        let is_table_large = look.table_bytes > SMALL_TABLE_BYTES.max(MOST_TIMES * ROW_BYTES * soon);
        let since_vacuum = self.vacuumed_at.map_or(Duration::MAX, |at| now.saturating_sub(at));
        let is_time = since_vacuum >= PATIENCE && (look.dead >= SOME_DEAD || is_table_large);
        if since_vacuum >= self.vacuum_pause && (look.dead >= MANY_DEAD || is_time) {
            return Step::Vacuum(if is_table_large { Truncate::Yes } else { Truncate::No });
        }
        if now < self.rebuild_from {
            return Step::Rest;
        }
        if let Some(leftover) = look.indexes.iter().find(|index| index.is_leftover) {
            return Step::DropLeftover(leftover);
        }
        if look.live > MOST_LIVE || look.table_bytes > MOST_TABLE_BYTES {
            return Step::Rest;
        }
        let entries = look.live + look.dead + passed_through;
        let most_bytes = SMALL_INDEX_BYTES.max(MOST_TIMES * ENTRY_BYTES * entries);
        look.indexes.iter().find(|index| index.bytes > most_bytes).map_or(Step::Rest, Step::Rebuild)
    }
}

/// `false`: it gave up, since somebody else was in the way.
fn has_ended(done: Result<(), Error>) -> Result<bool, Error> {
    match done {
        Ok(()) => Ok(true),
        Err(Error::Contended(_)) => Ok(false),
        Err(error @ (Error::Data(_) | Error::Unavailable(_))) => Err(error),
    }
}

fn has_helped(before: &Look, after: &Look) -> bool {
    let has_freed = before.dead > 0 && after.dead <= before.dead / 2;
    has_freed || after.table_bytes < before.table_bytes
}

#[cfg(test)]
mod tests {
    use postrider_store::upkeep::IndexName;

    use super::*;

    const MIB: u64 = 1 << 20;
    const STEP: Duration = SCHEDULE.interval;

    /// A table in which nothing is to be done, after a pass that saw the same.
    struct Case {
        live: u64,
        dead: u64,
        passed_through: u64,
        table_bytes: u64,
        index_bytes: u64,
        vacuumed_ago: Duration,
        pause: Duration,
    }

    const AT_REST: Case = Case {
        live: 0,
        dead: 0,
        passed_through: 0,
        table_bytes: 8_192,
        index_bytes: 16_384,
        vacuumed_ago: PATIENCE,
        pause: Duration::ZERO,
    };

    #[derive(Debug, PartialEq, Eq)]
    enum Expected {
        Rest,
        Vacuum,
        VacuumAndTruncate,
        Rebuild,
    }

    fn next(case: &Case) -> Expected {
        let index = |bytes| Index { name: IndexName::default(), bytes, is_leftover: false };
        let look = Look {
            is_owner: true,
            live: case.live,
            dead: case.dead,
            deleted: 1_000_000 + case.passed_through,
            table_bytes: case.table_bytes,
            indexes: vec![index(8_192), index(case.index_bytes)],
        };
        let now = Duration::from_secs(1_000);
        let job = Upkeep {
            deleted: Some(1_000_000),
            vacuumed_at: Some(now.saturating_sub(case.vacuumed_ago)),
            vacuum_pause: case.pause,
            ..Upkeep::default()
        };
        match job.next(&look, now) {
            Step::Rest => Expected::Rest,
            Step::Vacuum(Truncate::No) => Expected::Vacuum,
            Step::Vacuum(Truncate::Yes) => Expected::VacuumAndTruncate,
            Step::Rebuild(index) => {
                assert_eq!(index.bytes, case.index_bytes);
                Expected::Rebuild
            }
            Step::DropLeftover(index) => panic!("{index:?} is not left over"),
        }
    }

    #[test]
    fn each_table_gets_what_it_needs_most() {
        use Expected::{Rebuild, Rest, Vacuum, VacuumAndTruncate};
        let just_now = Duration::ZERO;
        let backlog = Case { live: 50_001, table_bytes: 20 * MIB, ..AT_REST };
        for (what, case, expected) in [
            ("at rest", AT_REST, Rest),
            ("few dead rows", Case { dead: 999, ..AT_REST }, Rest),
            ("some dead rows", Case { dead: 1_000, ..AT_REST }, Vacuum),
            (
                "the same, not yet",
                Case { dead: 1_000, vacuumed_ago: PATIENCE.saturating_sub(STEP), ..AT_REST },
                Rest,
            ),
            ("many", Case { dead: 20_000, vacuumed_ago: just_now, ..AT_REST }, Vacuum),
            ("many that stay", Case { dead: 20_000, pause: PATIENCE + STEP, ..AT_REST }, Rest),
            ("a large table", Case { table_bytes: 2 * MIB, ..AT_REST }, VacuumAndTruncate),
            ("the same with rows", Case { live: 2_000, table_bytes: 2 * MIB, ..AT_REST }, Rest),
            ("the same under load", Case { passed_through: 500, table_bytes: 2 * MIB, ..AT_REST }, Rest),
            ("after a load", Case { dead: 20_000, table_bytes: 9 * MIB, ..AT_REST }, VacuumAndTruncate),
            (
                "under load",
                Case { dead: 20_000, passed_through: 20_000, table_bytes: 9 * MIB, ..AT_REST },
                Vacuum,
            ),
            ("a grown index", Case { index_bytes: MIB, ..AT_REST }, Rebuild),
            ("the same with rows", Case { live: 5_000, index_bytes: MIB, ..AT_REST }, Rest),
            ("the same under load", Case { passed_through: 5_000, index_bytes: MIB, ..AT_REST }, Rest),
            (
                "the same before the clean-up",
                Case { dead: 5_000, vacuumed_ago: just_now, index_bytes: MIB, ..AT_REST },
                Rest,
            ),
            ("a grown index beside a backlog", Case { index_bytes: 500 * MIB, ..backlog }, Rest),
            ("and when it is almost gone", Case { live: 50_000, index_bytes: 500 * MIB, ..backlog }, Rebuild),
            (
                "a grown index beside a large table",
                Case { table_bytes: 65 * MIB, vacuumed_ago: just_now, index_bytes: 500 * MIB, ..AT_REST },
                Rest,
            ),
        ] {
            assert_eq!(next(&case), expected, "{what}");
        }
    }

    #[test]
    fn a_table_is_taken_for_busy_until_it_was_looked_at_twice() {
        let grown = Index { name: IndexName::default(), bytes: MIB, is_leftover: false };
        let look = Look {
            is_owner: true,
            live: 0,
            dead: 0,
            deleted: 1_000_000,
            table_bytes: 8_192,
            indexes: vec![grown],
        };
        let mut job = Upkeep::default();
        assert_eq!(job.next(&look, Duration::ZERO), Step::Rest);
        job.deleted = Some(look.deleted);
        assert_eq!(job.next(&look, STEP), Step::Rebuild(&look.indexes[0]));
    }
}
