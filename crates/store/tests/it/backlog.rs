//! What waits to be sent is counted, by tenants and by states.

use std::time::Duration;

use postrider_core::id::TenantId;
use postrider_store::{
    backlog, instances,
    instances::Role,
    lanes::{self, Lane},
};
use postrider_testkit::postgres::Database;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row as _};
use uuid::Uuid;

const INSERT: &str = "
    INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id,
           signing_key_id, accepted_at, deadline_at, attempt_number, tries,
           state, pending_since, due_at, lease_owner, lease_token, leased_at, lease_until)
    SELECT $1, gen_random_uuid(), gen_random_uuid(), $1, gen_random_uuid(), $1, now(), now(), 0, 0, $2,
           CASE WHEN $2 = 'pending' THEN now() - $4 * interval '1 second' END,
           CASE WHEN $2 = 'scheduled' THEN now() END,
           lease, lease, CASE WHEN lease IS NOT NULL THEN now() END, CASE WHEN lease IS NOT NULL THEN now() END
      FROM generate_series(1, $3)
           CROSS JOIN (SELECT CASE WHEN $2 = 'in_flight' THEN gen_random_uuid() END AS lease) AS l";

fn tenant(number: u128) -> TenantId {
    TenantId::from_uuid(Uuid::from_u128(number))
}

/// So many deliveries of a tenant in a state, ready for so many seconds.
async fn open(pool: &PgPool, tenant_id: TenantId, state: &str, count: i32, seconds: i32) {
    let insert = sqlx::query(INSERT).bind(tenant_id.as_uuid()).bind(state).bind(count).bind(seconds);
    insert.execute(pool).await.expect("the rows are written");
}

async fn lane(database: &Database) -> PgConnection {
    let options = database.url().parse().expect("a database URL");
    lanes::connect(&options, Lane::Background).await.expect("the database answers")
}

#[tokio::test]
async fn what_is_ready_is_counted_by_tenants_and_what_waits_for_its_own_endpoint_is_not() {
    let database = Database::fresh().await;
    let mut lane = lane(&database).await;
    assert!(backlog::ready_of_tenants(&mut lane).await.unwrap().is_empty());
    assert_eq!(backlog::open(database.pool()).await.unwrap(), backlog::Open::default());
    for (number, state, count) in
        [(1, "pending", 30), (1, "held", 5), (2, "pending", 2), (2, "scheduled", 70), (3, "in_flight", 4)]
    {
        open(database.pool(), tenant(number), state, count, 90).await;
    }
    let mut ready = backlog::ready_of_tenants(&mut lane).await.unwrap();
    ready.sort_unstable();
    assert_eq!(ready, [(tenant(1), 30), (tenant(2), 2)]);
    for (at_least, expected) in [(1, true), (32, true), (33, false), (u64::MAX, false)] {
        assert_eq!(backlog::has_ready(&mut lane, at_least).await.unwrap(), expected, "{at_least}");
    }
    let seen = backlog::open(database.pool()).await.unwrap();
    assert_eq!((seen.ready, seen.in_flight, seen.scheduled, seen.held), (32, 4, 70, 5));
    assert!((90..120).contains(&seen.oldest_ready.as_secs()), "{seen:?}");
}

/// Rows that the look reads, which is what the innermost part of its plan says.
async fn rows_read(lane: &mut PgConnection, limit: i64) -> Option<String> {
    let explain = format!(
        "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT count(*)
           FROM (SELECT FROM postrider.delivery_queue WHERE state = 'pending' LIMIT {limit}) AS found"
    );
    let lines = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(lane).await.expect("a plan");
    let lines = lines.iter().map(|line| line.get_unchecked::<String, _>(0));
    let read = lines.filter_map(|line| {
        let (_, actual) = line.split_once("actual rows=")?;
        actual.split(' ').next().map(ToOwned::to_owned)
    });
    read.last()
}

#[tokio::test]
async fn the_first_look_reads_no_more_than_it_asks_for() {
    let database = Database::fresh().await;
    open(database.pool(), tenant(1), "pending", 10_000, 0).await;
    open(database.pool(), tenant(1), "held", 10_000, 0).await;
    sqlx::raw_sql("VACUUM ANALYZE postrider.delivery_queue").execute(database.pool()).await.unwrap();
    let mut lane = lane(&database).await;
    assert_eq!(rows_read(&mut lane, 100).await.as_deref(), Some("100"));
    assert_eq!(rows_read(&mut lane, 50_000).await.as_deref(), Some("10000"));
}

#[tokio::test]
async fn what_waits_for_the_broker_is_counted_up_to_a_bound() {
    let database = Database::fresh().await;
    assert_eq!(backlog::outbox(database.pool(), 100).await.unwrap(), backlog::Outbox::default());
    let insert = "INSERT INTO postrider.outbox (route, payload, deliveries, created_at)
                  SELECT 'postrider.ready', 'x', 10, now() - interval '90 s' FROM generate_series(1, 30)";
    sqlx::raw_sql(insert).execute(database.pool()).await.unwrap();
    let seen = backlog::outbox(database.pool(), 100).await.unwrap();
    assert_eq!((seen.messages, seen.deliveries), (30, 300));
    assert!((90..120).contains(&seen.oldest.as_secs()), "{seen:?}");
    assert_eq!(backlog::outbox(database.pool(), 7).await.unwrap().deliveries, 70);
}

#[tokio::test]
async fn active_workers_are_those_that_deliver_and_beat() {
    let database = Database::fresh().await;
    let mut lane = lane(&database).await;
    let time_to_live = Duration::from_secs(10);
    let mut ids = Vec::new();
    for role in [Role::Api, Role::Worker, Role::All, Role::Worker, Role::Worker] {
        let id = Uuid::now_v7().into();
        instances::register(&mut lane, id, role, "here").await.unwrap();
        ids.push(id);
    }
    let active = async || instances::active_workers(database.pool(), time_to_live).await.unwrap();
    assert_eq!(active().await, 4);
    instances::retire(&mut lane, ids[3]).await.unwrap();
    assert_eq!(active().await, 3);
    let stop = "UPDATE postrider.instances SET beat_at = now() - interval '11 s' WHERE instance_id = $1";
    sqlx::query(stop).bind(ids[4].as_uuid()).execute(database.pool()).await.unwrap();
    assert_eq!(active().await, 2);
    assert!(instances::beat(&mut lane, ids[4]).await.unwrap());
    assert_eq!(active().await, 3);
}
