//! The queue's table and indexes stay as small as what is in them, and the job that sees to it harms nobody.

use std::{sync::Arc, time::Duration};

use postrider_engine::maintenance::upkeep::Upkeep;
use postrider_store::{
    lanes::{self, Lane},
    upkeep,
};
use postrider_testkit::{
    clock::FakeClock,
    postgres::Database,
    running::{Options, Running, loopback_http},
};
use sqlx::{Connection as _, PgConnection, PgPool, postgres::PgConnectOptions};

/// Between two passes.
const STEP: Duration = Duration::from_secs(2);
/// Passes in which everything must be done that there is to do.
const ENOUGH: usize = 20;
/// Real time, for what an engine does by itself.
const SOON: Duration = Duration::from_secs(30);
const DEAD_ENOUGH: i32 = 20_000;

/// Rows that come and go, in two transactions, and are counted before this returns.
const COME: &str = "
    INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
           accepted_at, deadline_at, state, lease_owner, lease_token, leased_at, lease_until, attempt_number, tries)
    SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(),
           gen_random_uuid(), now(), now() + interval '1 day', 'in_flight', gen_random_uuid(), gen_random_uuid(), now(),
           now() + interval '1 minute', 1, 1
      FROM generate_series(1, $1)";
const GO: &str = "DELETE FROM postrider.delivery_queue";
const COUNT_NOW: &str = "SELECT pg_stat_force_next_flush()";

const VACUUMS: &str = "SELECT pg_stat_get_vacuum_count('postrider.delivery_queue'::regclass)";
const LOCKS: &str = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND l.locktype = 'advisory'";
const LEFTOVERS: &str = "SELECT count(*) FROM pg_index WHERE NOT indisvalid";

struct World {
    database: Database,
    job: Upkeep,
    lane: PgConnection,
    now: Duration,
}

impl World {
    async fn new() -> Self {
        let database = Database::fresh().await;
        // What is seen is then done by the job.
        execute(database.pool(), "ALTER TABLE postrider.delivery_queue SET (autovacuum_enabled = off)").await;
        let lane = lanes::connect(&options(&database), Lane::Upkeep).await.expect("a connection");
        Self { database, job: Upkeep::default(), lane, now: Duration::from_secs(1_000) }
    }

    fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    async fn pass(&mut self) {
        self.now += STEP;
        self.job.pass(self.now, &mut self.lane).await.expect("a pass");
    }

    async fn passes(&mut self, count: usize) {
        for _ in 0..count {
            self.pass().await;
        }
    }

    async fn churn(&self, rows: i32) {
        churn(&options(&self.database), rows).await;
    }

    async fn sizes(&self) -> (i64, i64) {
        sqlx::query_as(
            "SELECT pg_table_size('postrider.delivery_queue'), pg_indexes_size('postrider.delivery_queue')",
        )
        .fetch_one(self.pool())
        .await
        .expect("sizes")
    }

    async fn count(&self, query: &'static str) -> i64 {
        count(self.pool(), query).await
    }

    /// Indexes that have grown, and nothing else to do.
    async fn with_grown_indexes() -> Self {
        let world = Self::new().await;
        world.churn(DEAD_ENOUGH).await;
        execute(world.pool(), "VACUUM (TRUNCATE ON) postrider.delivery_queue").await;
        assert!(world.sizes().await.1 > 500_000, "{:?}", world.sizes().await);
        world
    }
}

fn options(database: &Database) -> PgConnectOptions {
    database.url().parse().expect("a database URL")
}

async fn execute(pool: &PgPool, statement: &'static str) {
    sqlx::raw_sql(statement).execute(pool).await.expect("the statement runs");
}

async fn count(pool: &PgPool, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(pool).await.expect("a count")
}

async fn churn(options: &PgConnectOptions, rows: i32) {
    let mut connection = PgConnection::connect_with(options).await.expect("a connection");
    sqlx::query(COME).bind(rows).execute(&mut connection).await.expect("rows come");
    sqlx::query(GO).execute(&mut connection).await.expect("and go");
    sqlx::query(COUNT_NOW).execute(&mut connection).await.expect("and are counted");
    connection.close().await.expect("closed");
}

#[tokio::test]
async fn a_hundred_thousand_rows_that_passed_through_leave_no_more_than_a_few_thousand() {
    let mut world = World::new().await;
    world.churn(5_000).await;
    let first = world.sizes().await;
    let mut most = first;
    for _ in 0..20 {
        for _ in 0..5 {
            world.churn(1_000).await;
        }
        world.pass().await;
        let sizes = world.sizes().await;
        most = (most.0.max(sizes.0), most.1.max(sizes.1));
    }
    assert!((4..=8).contains(&world.count(VACUUMS).await), "{}", world.count(VACUUMS).await);
    assert!(most.0 < 12 << 20 && most.1 < 4 << 20, "under load it takes {most:?} bytes");
    world.passes(ENOUGH).await;
    let last = world.sizes().await;
    assert!(last.0 <= 2 * first.0 && last.1 <= 2 * first.1, "{first:?} at first, {most:?} at most, {last:?}");

    let vacuums = world.count(VACUUMS).await;
    world.passes(ENOUGH).await;
    assert_eq!((world.count(VACUUMS).await, world.sizes().await), (vacuums, last), "then it rests");
}

#[tokio::test]
async fn what_a_transaction_keeps_is_not_cleaned_up_over_and_over() {
    let mut world = World::new().await;
    let report = world.database.open_report().await;
    world.churn(DEAD_ENOUGH).await;
    // After 10 seconds, 20, 40, and every two minutes.
    for (passes, vacuums) in [(1, 1), (4, 1), (1, 2), (9, 2), (1, 3), (19, 3), (1, 4)] {
        world.passes(passes).await;
        assert_eq!(world.count(VACUUMS).await, vacuums, "{:?}", world.now);
    }
    report.rollback().await.expect("the report ends");
    world.passes(40).await;
    assert_eq!(world.count(VACUUMS).await, 5);
    // A page that was just being written is left for the next time.
    world.passes(ENOUGH).await;
    assert!(world.sizes().await.0 < 100_000, "{:?}", world.sizes().await);
}

/// However often it looks: it would wait, and leave half of an index behind each time.
#[tokio::test]
async fn nothing_is_rebuilt_while_a_transaction_stays_open() {
    let mut world = World::with_grown_indexes().await;
    let report = world.database.open_report().await;
    while !upkeep::is_held_up(&mut world.lane, Duration::from_secs(1)).await.expect("a look") {}
    let grown = world.sizes().await;
    world.passes(ENOUGH).await;
    assert_eq!((world.sizes().await, world.count(LEFTOVERS).await), (grown, 0));
    report.rollback().await.expect("the report ends");
    world.passes(ENOUGH).await;
    assert!(world.sizes().await.1 < 100_000, "{:?}", world.sizes().await);
}

#[tokio::test]
async fn what_an_interrupted_rebuild_left_is_dropped() {
    let mut world = World::with_grown_indexes().await;
    world.pass().await;
    // Too young to be seen as one that stays open.
    let mut report = world.database.open_report().await;
    for _ in 0..ENOUGH {
        world.pass().await;
        if world.count(LEFTOVERS).await > 0 {
            break;
        }
        report = world.database.open_report().await;
    }
    let mut other = lanes::connect(&options(&world.database), Lane::Upkeep).await.expect("a connection");
    assert!(upkeep::try_begin(&mut other).await.expect("an answer"), "and the lock was given back");
    upkeep::end(&mut other).await.expect("given back");
    report.rollback().await.expect("the report ends");
    world.passes(ENOUGH).await;
    assert_eq!(world.count(LEFTOVERS).await, 1, "it takes its time");
    world.passes(2 * ENOUGH).await;
    assert_eq!(world.count(LEFTOVERS).await, 0);
    assert!(world.sizes().await.1 < 100_000, "{:?}", world.sizes().await);
}

#[tokio::test]
async fn one_process_at_a_time_is_at_it() {
    let mut world = World::with_grown_indexes().await;
    let mut other = lanes::connect(&options(&world.database), Lane::Upkeep).await.expect("a connection");
    assert!(upkeep::try_begin(&mut other).await.expect("an answer"));
    let grown = world.sizes().await;
    world.passes(ENOUGH).await;
    assert_eq!(world.sizes().await, grown);
    // With its session the lock ends.
    other.close().await.expect("closed");
    while world.count(LOCKS).await > 0 {}
    world.passes(ENOUGH).await;
    assert!(world.sizes().await.1 < 100_000, "{:?}", world.sizes().await);
}

#[tokio::test]
async fn a_role_without_the_right_to_leaves_it_to_autovacuum() {
    let mut world = World::with_grown_indexes().await;
    let theirs = world.database.reads_and_writes().await;
    world.lane = lanes::connect(&theirs, Lane::Upkeep).await.expect("a connection");
    let grown = world.sizes().await;
    world.passes(ENOUGH).await;
    assert_eq!(world.sizes().await, grown);
    world.churn(DEAD_ENOUGH).await;
    let (grown, vacuums) = (world.sizes().await, world.count(VACUUMS).await);
    world.passes(ENOUGH).await;
    assert_eq!((world.sizes().await, world.count(VACUUMS).await), (grown, vacuums));
}

#[tokio::test]
async fn a_running_engine_does_it() {
    let database = Database::fresh().await;
    execute(database.pool(), "ALTER TABLE postrider.delivery_queue SET (autovacuum_enabled = off)").await;
    churn(&options(&database), DEAD_ENOUGH).await;
    let clock = FakeClock::default();
    let with_clock = Options { clock: Arc::new(clock.clone()), ..Options::default() };
    let engine = Running::start_with(&database, loopback_http(), with_clock);
    let indexes = "SELECT pg_indexes_size('postrider.delivery_queue')";
    let all_done = async {
        while count(database.pool(), indexes).await > 100_000 {
            clock.advance(STEP / 8);
        }
    };
    tokio::time::timeout(SOON, all_done).await.expect("the indexes come back");
    assert!(count(database.pool(), VACUUMS).await > 0);
    engine.drain().await;
}
