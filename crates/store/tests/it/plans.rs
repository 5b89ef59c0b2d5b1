//! The plans of the hot statements: each row is reached through an index, on an empty, a full and a bloated table
//! alike. A planner that reads a whole table now and then is what makes such systems fall over.

use std::time::Duration;

use postrider_store::{
    hold,
    lanes::{self, Lane},
    promote, take,
};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::hot_path::{World, delivered, scheduled, world};

/// Tables that grow: reading one from end to end is what no hot statement may do.
const GROWING: [&str; 5] = ["delivery_queue", "events", "deliveries", "attempts", "idempotency_keys"];

/// Runs every hot statement of the work lane, so that the connection has prepared them all.
async fn run_all(world: &mut World) {
    world.application.publish("order.created", "{}").await;
    world.application.publish("order.created", "{}").await;
    let claimed = world.take(2).await;
    world.settle(&[delivered(&claimed[0]), scheduled(&claimed[1], Duration::ZERO)]).await;
    promote::promote(&mut world.lane, 100).await.expect("promotion runs");
    take::find_waiting(&mut world.lane, None, 100).await.expect("a look");
    hold::hold(&mut world.lane, 100).await.expect("holding runs");
    hold::release(&mut world.lane, 100).await.expect("releasing runs");
}

/// The plans of all statements that a connection has prepared.
async fn plans(connection: &mut PgConnection) -> Vec<(String, String)> {
    let statements = sqlx::query(
        "SELECT name, statement, cardinality(parameter_types) FROM pg_prepared_statements
          WHERE statement LIKE '%postrider.%' AND statement NOT LIKE '%pg_prepared_statements%'",
    )
    .fetch_all(&mut *connection)
    .await
    .expect("the statements can be listed");
    let mut plans = Vec::new();
    for row in statements {
        let (name, statement, parameters): (String, String, i32) = (row.get(0), row.get(1), row.get(2));
        let nulls = vec!["NULL"; usize::try_from(parameters).expect("a count")].join(", ");
        let arguments = if nulls.is_empty() { String::new() } else { format!("({nulls})") };
        let lines: Vec<String> = sqlx::raw_sql(AssertSqlSafe(format!("EXPLAIN EXECUTE {name}{arguments}")))
            .fetch_all(&mut *connection)
            .await
            .expect("the plan can be shown")
            .iter()
            .map(|row| row.get(0))
            .collect();
        plans.push((statement, lines.join("\n")));
    }
    plans
}

async fn assert_no_table_is_read_whole(connection: &mut PgConnection, statements: usize, when: &str) {
    let plans = plans(connection).await;
    assert_eq!(plans.len(), statements, "every hot statement was run and none is missed");
    for (statement, plan) in plans {
        for table in GROWING {
            assert!(
                !plan.contains(&format!("Seq Scan on {table}")),
                "{table} is read whole on {when} tables:\n{statement}\n{plan}"
            );
        }
    }
}

async fn execute(connection: &mut PgConnection, statement: &'static str) {
    sqlx::raw_sql(statement).execute(connection).await.expect("the statement runs");
}

/// Waiting rows by the thousand, spread over the tenant's endpoint and many unknown ones.
const FILL: &str = "
    INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id,
           signing_key_id, accepted_at, deadline_at, state, pending_since, attempt_number, tries)
    SELECT q.tenant_id, gen_random_uuid(), gen_random_uuid(), q.application_id,
           CASE WHEN n % 2 = 0 THEN q.endpoint_id ELSE gen_random_uuid() END,
           q.signing_key_id, now(), now() + interval '1 day', 'pending', now() - n * interval '1 ms', 0, 0
      FROM (SELECT * FROM postrider.delivery_queue LIMIT 1) q, generate_series(1, 20000) n;
    INSERT INTO postrider.events (tenant_id, event_id, application_id, event_type, content_type, body, trace_id,
           delivery_count, accepted_at)
    SELECT tenant_id, event_id, application_id, 'order.created', 'application/json', '{}',
           decode(repeat('01', 16), 'hex'), 1, now()
      FROM postrider.delivery_queue WHERE attempt_number = 0
        ON CONFLICT DO NOTHING;";

#[tokio::test]
async fn no_hot_statement_reads_a_whole_table() {
    const STATEMENTS: usize = 6;
    let mut world = world().await;
    run_all(&mut world).await;
    assert_no_table_is_read_whole(&mut world.lane, STATEMENTS, "empty").await;

    let options = world.database.url().parse().expect("a database URL");
    let mut administration = PgConnection::connect_with(&options).await.expect("a connection");
    world.application.publish("order.created", "{}").await;
    execute(&mut administration, FILL).await;
    for (change, when) in [
        ("SELECT 1", "full, not analysed"),
        ("ANALYZE", "full"),
        ("DELETE FROM postrider.delivery_queue WHERE attempt_number = 0", "bloated"),
        ("ANALYZE", "bloated and analysed"),
    ] {
        execute(&mut administration, change).await;
        world.lane = lanes::connect(&options, Lane::Work).await.expect("a connection");
        run_all(&mut world).await;
        assert_no_table_is_read_whole(&mut world.lane, STATEMENTS, when).await;
    }
}
