//! Who is refused for what waits to be sent, seen in the database.

use std::{num::NonZeroU64, sync::Arc};

use postrider_core::{
    id::TenantId,
    overload::{Limit, Verdict},
};
use postrider_engine::backlog::{Settings, look};
use postrider_store::lanes::{self, Lane};
use postrider_testkit::{
    postgres::Database,
    scenario::{Application, Scenario},
};
use sqlx::PgConnection;

fn settings(limit: u64, has_broker: bool) -> Settings {
    let limit = Limit::new(NonZeroU64::new(limit).expect("not zero"));
    Settings { limit, gate: Arc::default(), has_broker }
}

async fn lane(database: &Database) -> PgConnection {
    lanes::connect(&database.url().parse().expect("a URL"), Lane::Background).await.expect("a connection")
}

async fn execute(database: &Database, statement: &'static str) {
    sqlx::raw_sql(statement).execute(database.pool()).await.expect("the statement runs");
}

/// An application of a tenant of its own, with so many deliveries that wait to be sent.
async fn application(database: &Database, tenant: &str, waiting: u32) -> (TenantId, Application) {
    let tenant = Scenario::new(database.pool().clone()).tenant(tenant).await;
    let application = tenant.application("orders").await;
    let endpoint = tenant.endpoint("warehouse", "http://127.0.0.1:9/").create().await;
    application.sends(&["*"], &endpoint).await;
    for _ in 0..waiting {
        application.publish("order.created", "{}").await;
    }
    (tenant.id, application)
}

#[tokio::test]
async fn a_tenant_whose_endpoint_takes_nothing_is_refused_alone_and_until_most_of_it_is_gone() {
    let database = Database::fresh().await;
    let (mut lane, settings) = (lane(&database).await, settings(10, false));
    let (busy_id, busy) = application(&database, "acme", 9).await;
    let (quiet_id, _) = application(&database, "globex", 0).await;
    let open = look(&mut lane, &settings, &Verdict::Nobody).await.expect("a look");
    assert_eq!(open, Verdict::Nobody);
    busy.publish("order.created", "{}").await;
    let closed = look(&mut lane, &settings, &open).await.expect("a look");
    assert_eq!((closed.refuses(busy_id), closed.refuses(quiet_id)), (true, false));

    // What waits for its own endpoint in another way is not in the way of others.
    let held = "UPDATE postrider.delivery_queue SET state = 'held', pending_since = NULL
                 WHERE delivery_id = (SELECT max(delivery_id::text)::uuid FROM postrider.delivery_queue WHERE state = 'pending')";
    execute(&database, held).await;
    let still = look(&mut lane, &settings, &closed).await.expect("a look");
    assert!(still.refuses(busy_id), "nine are more than eight");
    execute(&database, held).await;
    execute(&database, held).await;
    assert_eq!(look(&mut lane, &settings, &still).await.expect("a look"), Verdict::Nobody);
}

#[tokio::test]
async fn a_full_outbox_refuses_everybody_where_there_is_a_broker() {
    let database = Database::fresh().await;
    let mut lane = lane(&database).await;
    execute(
        &database,
        "INSERT INTO postrider.outbox (route, payload, deliveries)
         SELECT 'postrider.ready', 'x', 5 FROM generate_series(1, 20)",
    )
    .await;
    // Nobody sends these: while the broker is away they wait for it, longer than the others.
    execute(
        &database,
        "INSERT INTO postrider.outbox (route, payload, deliveries)
         SELECT 'postrider.dead', 'x', 1 FROM generate_series(1, 50)",
    )
    .await;
    for (limit, has_broker, expected) in [
        (100, true, Verdict::Everybody { waiting: 100 }),
        (101, true, Verdict::Nobody),
        (100, false, Verdict::Nobody),
    ] {
        let seen = look(&mut lane, &settings(limit, has_broker), &Verdict::Nobody).await.expect("a look");
        assert_eq!(seen, expected, "{limit}");
    }
}
