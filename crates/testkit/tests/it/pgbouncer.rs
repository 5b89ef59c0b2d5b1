//! What tests rely on when they put a pooler before a database.

use postrider_testkit::{pgbouncer::Pooler, postgres::Database};
use sqlx::{Connection as _, PgConnection, postgres::PgConnectOptions};

#[tokio::test]
async fn each_transaction_may_get_another_session() {
    let database = Database::empty().await;
    let pooler = Pooler::before(database.url()).await;
    // It knows no such parameter.
    let options = pooler.url().parse::<PgConnectOptions>().unwrap().extra_float_digits(None);
    let mut first = PgConnection::connect_with(&options).await.unwrap();
    let mut second = PgConnection::connect_with(&options).await.unwrap();
    let session = async |connection: &mut PgConnection| {
        let session = sqlx::raw_sql("SELECT pg_backend_pid()::text");
        sqlx::Row::get::<String, _>(&sqlx::Executor::fetch_one(connection, session).await.unwrap(), 0)
    };
    assert_eq!(session(&mut first).await, session(&mut second).await, "one session serves both");

    let mut open = first.begin().await.unwrap();
    let held = session(&mut open).await;
    assert_ne!(session(&mut second).await, held, "a transaction keeps its own");
    open.rollback().await.unwrap();
}
