//! `serve` under a database role that cannot alter the schema, with the migrations under another.

use postrider_testkit::{
    ledger::{Expectation, Ledger},
    postgres::Database,
    receiver::{Answer, Receiver},
};
use sqlx::{AssertSqlSafe, PgPool};
use std::time::Duration;
use url::Url;

use crate::server::{Server, launch};

const OVER: Expectation = Expectation { poll: Duration::from_secs(2), everything_ended: true };
/// What only an owner may do.
const ALTERATIONS: [&str; 5] = [
    "CREATE TABLE postrider.mine (id int)",
    "ALTER TABLE postrider.events ADD COLUMN mine int",
    "ALTER TABLE postrider.endpoints DISABLE ROW LEVEL SECURITY",
    "DROP TRIGGER the_audit_log_is_append_only ON postrider.audit_log",
    "TRUNCATE postrider.deliveries",
];

/// A role that logs in and has been granted this much; returns the URL it connects by.
async fn role(database: &Database, grants: &[&str]) -> Url {
    let name = format!("serves_{}", uuid::Uuid::new_v4().simple());
    let mut statements = vec![format!("CREATE ROLE {name} LOGIN PASSWORD 'serves'")];
    statements.extend(grants.iter().map(|grant| format!("GRANT {grant} TO {name}")));
    for statement in statements {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(database.pool()).await.unwrap();
    }
    let mut url = Url::parse(database.url()).unwrap();
    url.set_username(&name).unwrap();
    url.set_password(Some("serves")).unwrap();
    url
}

#[tokio::test]
async fn a_process_works_under_a_role_that_cannot_alter_the_schema() {
    let database = Database::fresh().await;
    let url = role(&database, &["postrider_service"]).await;
    let receiver = Receiver::start().await;
    receiver.queue([Answer::status(503), Answer::status(500), Answer::status(400)]);
    let variables = [("DATABASE_URL", url.as_str()), ("POSTRIDER_MIGRATION_DATABASE_URL", database.url())];
    let server = Server::start_with(&database, "all", &variables).await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let accepted = publisher.publish("[1]").await;
    let dead = publisher.wait_for_delivery(&accepted, "dead_lettered").await;
    let id = dead["id"].as_str().unwrap();
    publisher.manage("POST", &format!("/deliveries/{id}/retry"), serde_json::Value::Null, 202).await;
    publisher.wait_for_delivery(&accepted, "delivered").await;

    let ledger = Ledger { accepted: vec![accepted], ..Ledger::default() }.with_receiver(&receiver);
    ledger.check(database.pool(), OVER).await;
    let pool = PgPool::connect(url.as_str()).await.unwrap();
    for statement in ALTERATIONS {
        let refused = sqlx::query(statement).execute(&pool).await.expect_err("only the owner may");
        let code = refused.as_database_error().and_then(|error| error.code().map(|code| code.to_string()));
        assert_eq!(code.as_deref(), Some("42501"), "{statement}: {refused}");
    }
}

#[tokio::test]
async fn a_role_that_cannot_keep_tenants_apart_is_refused_at_the_start() {
    let database = Database::fresh().await;
    let tables =
        ["USAGE ON SCHEMA postrider", "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA postrider"];
    let url = role(&database, &tables).await;
    let ended = launch(&database, "all", &[("DATABASE_URL", url.as_str())]).ended().await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("GRANT postrider_service TO"), "{ended:?}");
    assert!(ended.stderr.contains("DATABASE_URL"), "{ended:?}");
}
