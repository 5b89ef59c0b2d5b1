//! Somebody forgets a transaction, and PostgreSQL cannot clean up behind it: a claim still touches few pages, and an
//! operator sees it.

use postrider_store::lanes::{self, Lane};
use postrider_testkit::postgres::Database;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::scene::{metric, until};
use crate::server::Server;

const TAKE: &str = include_str!("../../../../store/src/take/take.sql");
/// Rows that came and went while the transaction was open.
const CHURNED: i64 = 20_000;
/// Pages that a claim of one row may touch: the row's own, those of its event and endpoint, and the indexes above them.
const MOST_PAGES: i64 = 100;

const CHURN: &str = "
    INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id,
           signing_key_id, accepted_at, deadline_at, state, pending_since, attempt_number, tries)
    SELECT tenant_id, gen_random_uuid(), gen_random_uuid(), tenant_id, endpoint_id, signing_key_id,
           now(), now() + interval '1 day', 'pending', now(), 0, 0
      FROM postrider.endpoints, generate_series(1, $1)";

/// A transaction that looked at something once and was then forgotten.
async fn forgotten(database: &Database) -> PgConnection {
    let mut session = PgConnection::connect(database.url()).await.unwrap();
    for statement in ["BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM postrider.tenants"] {
        sqlx::raw_sql(statement).execute(&mut session).await.unwrap();
    }
    session
}

/// How many pages a claim of the only waiting row touches; it is not kept.
async fn pages_of_a_claim(lane: &mut PgConnection, low_water: &str) -> i64 {
    let endpoint: String = sqlx::query_scalar("SELECT endpoint_id::text FROM postrider.endpoints")
        .fetch_one(&mut *lane)
        .await
        .unwrap();
    let explained = format!(
        "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
         EXECUTE claim (ARRAY['{endpoint}']::uuid[], ARRAY[10], ARRAY[{low_water}], gen_random_uuid(), gen_random_uuid(), 60)"
    );
    let mut transaction = lane.begin().await.unwrap();
    let rows = sqlx::raw_sql(AssertSqlSafe(explained)).fetch_all(&mut *transaction).await.unwrap();
    transaction.rollback().await.unwrap();
    let plan: Value = serde_json::from_str(&rows[0].get_unchecked::<String, _>(0)).unwrap();
    let plan = &plan[0]["Plan"];
    assert_eq!(plan["Actual Rows"], 1, "the waiting row was claimed: {plan}");
    ["Shared Hit Blocks", "Shared Read Blocks"].iter().map(|kind| plan[*kind].as_i64().unwrap()).sum()
}

#[tokio::test]
async fn a_claim_behind_a_low_water_mark_touches_few_pages_however_much_is_not_cleaned_up() {
    let database = Database::fresh().await;
    let server = Server::start(&database, "api").await;
    let publisher = server.publisher().await;
    publisher.deliver_to("http://127.0.0.1:9/").await;
    let forgotten = forgotten(&database).await;
    sqlx::query(CHURN).bind(CHURNED).execute(database.pool()).await.unwrap();
    sqlx::query("DELETE FROM postrider.delivery_queue").execute(database.pool()).await.unwrap();
    publisher.publish("[1]").await;

    let mut lane = lanes::connect(&database.url().parse().unwrap(), Lane::Work).await.unwrap();
    let prepare = format!("PREPARE claim (uuid[], int[], timestamptz[], uuid, uuid, float8) AS {TAKE}");
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut lane).await.unwrap();
    let mark: String = sqlx::query_scalar("SELECT min(pending_since)::text FROM postrider.delivery_queue")
        .fetch_one(&mut lane)
        .await
        .unwrap();
    let marked = pages_of_a_claim(&mut lane, &format!("'{mark}'::timestamptz")).await;
    let unmarked = pages_of_a_claim(&mut lane, "NULL::timestamptz").await;
    assert!(marked <= MOST_PAGES, "{marked} pages");
    assert!(unmarked >= 4 * MOST_PAGES, "without the mark only {unmarked} pages: nothing was in the way");
    forgotten.close().await.unwrap();
}

#[tokio::test]
async fn the_oldest_transaction_is_a_metric() {
    let database = Database::fresh().await;
    let forgotten = forgotten(&database).await;
    let server = Server::start(&database, "all").await;
    let age = async || metric(server.address, "postrider_oldest_transaction_seconds").await;
    until("the age of the transaction is shown", async || age().await > 0.0).await;
    forgotten.close().await.unwrap();
    until("it is over", async || age().await == 0.0).await;
}
