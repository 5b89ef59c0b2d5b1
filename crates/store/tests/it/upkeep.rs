//! Upkeep of the queue's table: what it waits for, what it leaves behind, and that nobody waits for it.

use std::time::Duration;

use postrider_store::{
    Error,
    lanes::{self, Lane},
    upkeep::{self, Look, Truncate},
};
use postrider_testkit::postgres::Database;
use sqlx::{PgConnection, PgPool};

use crate::hot_path::{delivered, world};

/// More than it takes to give up, less than a statement may take.
const SOON: Duration = Duration::from_secs(8);

const VACUUMS: &str = "SELECT pg_stat_get_vacuum_count('postrider.delivery_queue'::regclass)";
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND query LIKE 'REINDEX%' AND wait_event_type = 'Lock'";
const TRUNCATING: &str = "SELECT count(*) FROM pg_stat_progress_vacuum
    WHERE datname = current_database() AND phase = 'truncating heap'";

/// Some pages.
const FILL: &str = "
    INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id,
           signing_key_id, accepted_at, deadline_at, state, pending_since, attempt_number, tries)
    SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(),
           gen_random_uuid(), now(), now() + interval '1 day', 'pending', now(), 0, 0
      FROM generate_series(1, 2000)";

async fn lane(database: &Database) -> PgConnection {
    let options = database.url().parse().expect("a database URL");
    lanes::connect(&options, Lane::Upkeep).await.expect("a connection")
}

async fn look(lane: &mut PgConnection) -> Look {
    upkeep::look(lane).await.expect("a look")
}

/// Its indexes, and which of them are left over.
async fn indexes(lane: &mut PgConnection) -> Vec<(String, bool)> {
    look(lane).await.indexes.iter().map(|index| (index.name.to_string(), index.is_leftover)).collect()
}

async fn count(pool: &PgPool, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(pool).await.expect("a count")
}

#[tokio::test]
async fn while_a_rebuild_waits_for_a_transaction_deliveries_go_on() {
    let mut world = world().await;
    let mut lane = lane(&world.database).await;
    // Long enough to look at it.
    sqlx::raw_sql("SET lock_timeout = '60s'; SET statement_timeout = '60s'")
        .execute(&mut lane)
        .await
        .expect("set");
    let report = world.database.open_report().await;
    let (before, names) = (look(&mut lane).await.indexes, indexes(&mut lane).await);
    let pool = world.database.pool().clone();
    let going_on = async {
        while count(&pool, WAITING).await == 0 {}
        for _ in 0..3 {
            world.application.publish("order.created", "{}").await;
            let claimed = world.take(1).await.remove(0);
            assert_eq!(world.settle(&[delivered(&claimed)]).await, [true]);
        }
        assert_eq!(count(&pool, WAITING).await, 1, "it waits still");
        report.rollback().await.expect("the report ends");
    };
    let both = async { tokio::join!(upkeep::rebuild(&mut lane, &before[0].name), going_on).0 };
    tokio::time::timeout(SOON, both).await.expect("nobody waits for it").expect("then it is rebuilt");
    assert_eq!(indexes(&mut lane).await, names, "as before, and nothing beside it");
}

/// PostgreSQL asks for its lock again and again, for five seconds, and is not given it.
#[tokio::test]
async fn while_a_truncation_asks_for_its_lock_deliveries_go_on() {
    let mut world = world().await;
    let mut lane = lane(&world.database).await;
    let mut idle = world.database.pool().begin().await.expect("a transaction begins");
    let pool = world.database.pool().clone();
    let alone = "ALTER TABLE postrider.delivery_queue SET (autovacuum_enabled = off)";
    for statement in [alone, FILL, "DELETE FROM postrider.delivery_queue"] {
        sqlx::raw_sql(statement).execute(&pool).await.expect("rows come and go");
    }
    sqlx::raw_sql("SELECT FROM postrider.delivery_queue").execute(&mut *idle).await.expect("it reads");
    let going_on = async {
        while count(&pool, TRUNCATING).await == 0 {}
        for _ in 0..3 {
            world.application.publish("order.created", "{}").await;
            let claimed = world.take(1).await.remove(0);
            assert_eq!(world.settle(&[delivered(&claimed)]).await, [true]);
        }
        assert_eq!(count(&pool, TRUNCATING).await, 1, "it asks still");
        idle.rollback().await.expect("it ends");
    };
    let both = async { tokio::join!(upkeep::vacuum(&mut lane, Truncate::Yes), going_on).0 };
    tokio::time::timeout(SOON, both).await.expect("nobody waits for it").expect("done");
}

#[tokio::test]
async fn a_rebuild_gives_up_soon_and_what_it_leaves_can_be_dropped() {
    let database = Database::fresh().await;
    let mut lane = lane(&database).await;
    let (before, names) = (look(&mut lane).await, indexes(&mut lane).await);
    assert!(before.indexes.iter().all(|index| !index.is_leftover), "{before:?}");
    let report = database.open_report().await;
    for index in &before.indexes {
        let rebuilt = tokio::time::timeout(SOON, upkeep::rebuild(&mut lane, &index.name)).await;
        assert!(matches!(rebuilt, Ok(Err(Error::Contended(_)))), "{rebuilt:?}");
    }
    let leftovers = look(&mut lane).await.indexes;
    let leftovers: Vec<_> = leftovers.into_iter().filter(|index| index.is_leftover).collect();
    assert_eq!(leftovers.len(), before.indexes.len(), "{leftovers:?}");
    let dropped = tokio::time::timeout(SOON, upkeep::drop_leftover(&mut lane, &leftovers[0].name)).await;
    assert!(matches!(dropped, Ok(Err(Error::Contended(_)))), "{dropped:?}");

    report.rollback().await.expect("the report ends");
    for leftover in &leftovers {
        upkeep::drop_leftover(&mut lane, &leftover.name).await.expect("dropped");
        upkeep::drop_leftover(&mut lane, &leftover.name).await.expect("dropped by somebody else before");
    }
    assert_eq!(indexes(&mut lane).await, names);
}

#[tokio::test]
async fn an_invalid_index_of_another_name_is_somebodys_work() {
    let database = Database::fresh().await;
    let mut lane = lane(&database).await;
    let report = database.open_report().await;
    let build =
        sqlx::raw_sql("CREATE INDEX CONCURRENTLY of_theirs ON postrider.delivery_queue (accepted_at)");
    build.execute(&mut lane).await.expect_err("it waits for the report, and gives up");
    report.rollback().await.expect("the report ends");
    let indexes = indexes(&mut lane).await;
    assert!(indexes.contains(&("postrider.of_theirs".to_owned(), false)), "{indexes:?}");
}

#[tokio::test]
async fn who_is_waited_for_is_seen_before() {
    let database = Database::fresh().await;
    let mut lane = lane(&database).await;
    let is_held_up =
        async |lane: &mut PgConnection, age| upkeep::is_held_up(lane, age).await.expect("a look");
    assert!(!is_held_up(&mut lane, Duration::ZERO).await);
    let mut report = database.pool().begin().await.expect("a transaction begins");
    sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .execute(&mut *report)
        .await
        .expect("it reads nothing of ours");
    assert!(is_held_up(&mut lane, Duration::ZERO).await, "it has a snapshot");
    assert!(!is_held_up(&mut lane, Duration::from_secs(3_600)).await, "and is not that old");
    report.rollback().await.expect("the report ends");

    let mut idle = database.pool().begin().await.expect("a transaction begins");
    sqlx::raw_sql("SELECT 1").execute(&mut *idle).await.expect("it reads nothing");
    assert!(!is_held_up(&mut lane, Duration::ZERO).await, "it keeps nothing");
    sqlx::raw_sql("SELECT FROM postrider.delivery_queue").execute(&mut *idle).await.expect("it reads");
    assert!(is_held_up(&mut lane, Duration::ZERO).await, "it has touched the table");
    idle.rollback().await.expect("it ends");
    assert!(!is_held_up(&mut lane, Duration::ZERO).await);
}

#[tokio::test]
async fn one_session_at_a_time_has_the_lock() {
    let database = Database::fresh().await;
    let (mut one, mut other) = (lane(&database).await, lane(&database).await);
    let try_begin = async |lane: &mut PgConnection| upkeep::try_begin(lane).await.expect("an answer");
    assert!(try_begin(&mut one).await);
    assert!(!try_begin(&mut other).await);
    upkeep::end(&mut one).await.expect("given back");
    assert!(try_begin(&mut other).await);
}

#[tokio::test]
async fn a_role_that_does_not_own_the_table_is_told_apart_and_frees_nothing() {
    let database = Database::fresh().await;
    let options = database.reads_and_writes().await;
    let mut theirs = lanes::connect(&options, Lane::Upkeep).await.expect("a connection");
    assert!(!look(&mut theirs).await.is_owner);
    upkeep::vacuum(&mut theirs, Truncate::Yes).await.expect("passed over");
    assert_eq!(count(database.pool(), VACUUMS).await, 0);

    let mut ours = lane(&database).await;
    assert!(look(&mut ours).await.is_owner);
    upkeep::vacuum(&mut ours, Truncate::Yes).await.expect("done");
    assert_eq!(count(database.pool(), VACUUMS).await, 1);
}
