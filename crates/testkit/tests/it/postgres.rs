//! What tests rely on when they take a database.

use postrider_embedded::Shutdown;
use postrider_testkit::postgres::Database;
use sqlx::{Connection as _, PgConnection};

async fn count_tables(database: &Database) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM pg_tables WHERE schemaname = 'postrider'")
        .fetch_one(database.pool())
        .await
        .unwrap()
}

#[tokio::test]
async fn fresh_databases_have_the_schema_and_share_nothing() {
    let first = Database::fresh().await;
    let second = Database::fresh().await;
    assert!(count_tables(&first).await > 0);
    sqlx::query("CREATE TABLE postrider.only_here ()").execute(first.pool()).await.unwrap();
    assert_eq!(count_tables(&first).await, count_tables(&second).await + 1);
}

#[tokio::test]
async fn empty_databases_have_no_schema() {
    assert_eq!(count_tables(&Database::empty().await).await, 0);
}

#[tokio::test]
async fn a_dropped_database_is_gone() {
    let database = Database::fresh().await;
    let url = database.url().to_owned();
    PgConnection::connect(&url).await.unwrap().close().await.unwrap();
    drop(database);
    let refused = PgConnection::connect(&url).await.unwrap_err();
    assert!(refused.to_string().contains("does not exist"), "{refused}");
}

#[tokio::test]
async fn a_cluster_of_its_own_keeps_what_was_committed_before_a_crash() {
    let (mut cluster, database) = Database::own_cluster().await;
    let tables = count_tables(&database).await;
    sqlx::query("CREATE TABLE postrider.kept ()").execute(database.pool()).await.unwrap();
    cluster.halt(Shutdown::Immediate).await.unwrap();
    assert!(PgConnection::connect(database.url()).await.is_err(), "the server is away");
    cluster.resume().await.unwrap();
    assert_eq!(count_tables(&database).await, tables + 1);
}
