//! What deleting endpoints, or leading them elsewhere, would leave open.

use postrider_core::id::EndpointId;
use postrider_store::{
    audit::{Actor, By},
    deliveries::Status,
    edit::Edit,
    registry,
};
use postrider_testkit::postgres::Database;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::queries_history::History;

/// Many deliveries of another tenant.
const OTHERS: &str = "
    INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
           accepted_at, deadline_at, state, due_at, attempt_number, tries)
    SELECT (SELECT min(endpoint_id::text)::uuid FROM postrider.endpoints), gen_random_uuid(), gen_random_uuid(),
           gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), now(), now(), 'scheduled', now(), 1, 1
      FROM generate_series(1, 100000);
    ANALYZE postrider.delivery_queue";

/// The plan of the look for these endpoints.
async fn plan(connection: &mut PgConnection, tenants: &[Uuid], endpoints: &[Uuid]) -> String {
    let name: String = sqlx::query_scalar(
        "SELECT name FROM pg_prepared_statements
          WHERE statement LIKE '%count(*)%FROM postrider.delivery_queue JOIN%'
            AND statement NOT LIKE '%pg_prepared_statements%'",
    )
    .fetch_one(&mut *connection)
    .await
    .expect("it was run");
    let array = |ids: &[Uuid]| {
        let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
        format!("'{{{}}}'", ids.join(","))
    };
    let explain = format!("EXPLAIN EXECUTE {name}({}, {})", array(tenants), array(endpoints));
    let lines =
        sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(connection).await.expect("the plan can be shown");
    lines.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn one_look_by_the_key_finds_what_is_open_in_any_state_and_reads_nothing_of_others() {
    let history = History::with_every_state().await;
    sqlx::raw_sql(OTHERS).execute(history.pool()).await.expect("filled");
    let tenant_id = history.tenant.id;
    let ended = |status: &&Status| matches!(status, Status::Delivered | Status::DeadLettered);
    let open = Status::ALL.iter().filter(|status| !ended(status)).count() as u64;
    let archive: Uuid =
        sqlx::query_scalar("SELECT endpoint_id FROM postrider.endpoints WHERE name = 'archive'")
            .fetch_one(history.pool())
            .await
            .expect("the endpoint");
    let nobody = EndpointId::from_uuid(Uuid::now_v7());
    // As many as a file may have, and most of them without any.
    let mut asked = vec![
        (tenant_id, history.warehouse.id),
        (tenant_id, EndpointId::from_uuid(archive)),
        (tenant_id, nobody),
    ];
    asked.extend((0..1_000).map(|_| (tenant_id, EndpointId::from_uuid(Uuid::now_v7()))));
    let mut connection = history.pool().acquire().await.expect("a connection");
    let mut found = registry::open_deliveries(&mut connection, &asked).await.expect("a look");
    found.sort_unstable();
    let mut expected = vec![(history.warehouse.id, open), (EndpointId::from_uuid(archive), open)];
    expected.sort_unstable();
    assert_eq!(found, expected);

    let ids: Vec<Uuid> = asked.iter().map(|(_, id)| id.as_uuid()).collect();
    let plan = plan(&mut connection, &[tenant_id.as_uuid()], &ids).await;
    assert!(plan.contains("delivery_queue_pkey") && !plan.contains("Seq Scan on delivery_queue"), "{plan}");
    assert!(plan.contains("Hash Join"), "each row is not compared with each endpoint: {plan}");
}

/// Those with a great deal open can be looked at, and publishers wait for nothing that takes as long.
#[tokio::test]
async fn the_look_that_nobody_waits_for_may_take_longer_than_the_rest() {
    let database = Database::fresh().await;
    let by = By { actor: Actor::CommandLine, address: None };
    let mut edit = Edit::of_operator(database.pool(), None, by).await.expect("an edit");
    registry::begin_applying(&mut edit).await.expect("alone");
    let before = timeout(&mut edit).await;
    let mut look = registry::begin_look(&mut edit).await.expect("a look");
    let during = timeout(&mut look).await;
    registry::open_deliveries(&mut look, &[]).await.expect("nothing is asked for");
    look.rollback().await.expect("its end");
    let after = timeout(&mut edit).await;
    let mut dry_run = registry::begin_read(database.pool()).await.expect("a reader");
    let told = [before, during, after, timeout(&mut dry_run).await];
    assert_eq!(told, ["10s", "30s", "10s", "30s"]);
}

async fn timeout(connection: &mut PgConnection) -> String {
    sqlx::query_scalar("SHOW statement_timeout").fetch_one(connection).await.expect("shown")
}
