//! The pool behind a pooler that gives each transaction another session.

use std::time::Duration;

use futures::future::join_all;
use postrider_store::pool::{self, Way};
use postrider_testkit::{pgbouncer::Pooler, postgres::Database};
use sqlx::{PgPool, postgres::PgConnectOptions};

/// More than the pooler has sessions, so that they change hands all the time.
const CONNECTIONS: u32 = 12;
const STATEMENTS: i32 = 300;
/// Longest wait for what must come.
const LIMIT: Duration = Duration::from_secs(20);

async fn open(way: Way, connections: u32, url: &str) -> PgPool {
    let options: PgConnectOptions = url.parse().expect("a database URL");
    pool::open(way, connections, options.extra_float_digits(None)).await.expect("the pooler answers")
}

/// Statements of several texts at once, some in transactions; returns how many went wrong.
async fn ask_a_lot(pool: &PgPool) -> usize {
    let ask = async |number: i32| -> Result<i32, sqlx::Error> {
        // Texts differ, so that what another prepared under the same name is not by chance the same.
        let text = sqlx::AssertSqlSafe(format!("SELECT $1::int4 + {}", number % 7));
        if number % 3 > 0 {
            return sqlx::query_scalar(text).bind(number).fetch_one(pool).await;
        }
        let mut transaction = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let found = sqlx::query_scalar(text).bind(number).fetch_one(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(found)
    };
    let answers = join_all((0..STATEMENTS).map(ask)).await;
    let is_right = |(number, answer): &(i32, Result<i32, _>)| matches!(answer, Ok(found) if *found == number + number % 7);
    (0..STATEMENTS).zip(answers).filter(|asked| !is_right(asked)).count()
}

#[tokio::test]
async fn statements_find_what_was_prepared_for_them_behind_a_pooler() {
    let database = Database::empty().await;
    let pooler = Pooler::before(database.url()).await;
    let pool = open(Way::ForgetsStatements, CONNECTIONS, pooler.url()).await;
    assert_eq!(ask_a_lot(&pool).await, 0);

    let naive = open(Way::KeepsStatements, CONNECTIONS, pooler.url()).await;
    assert!(
        ask_a_lot(&naive).await > 0,
        "this pooler does not keep statements, so there is something to prove"
    );
}

#[tokio::test]
async fn a_transaction_behind_a_pooler_is_committed_when_it_says_so() {
    let database = Database::empty().await;
    let pooler = Pooler::before(database.url()).await;
    let pool = open(Way::ForgetsStatements, CONNECTIONS, pooler.url()).await;
    sqlx::query("CREATE TABLE kept (number int PRIMARY KEY)").execute(database.pool()).await.unwrap();
    let insert = || sqlx::query("INSERT INTO kept VALUES ($1)");

    let mut dropped = pool.begin().await.unwrap();
    insert().bind(1).execute(&mut *dropped).await.unwrap();
    drop(dropped);
    for number in [2, 3] {
        let mut transaction = pool.begin().await.unwrap();
        insert().bind(number).execute(&mut *transaction).await.unwrap();
        transaction.commit().await.unwrap();
        let seen: Vec<i32> = sqlx::query_scalar("SELECT number FROM kept ORDER BY number")
            .fetch_all(database.pool())
            .await
            .unwrap();
        assert_eq!(seen.last(), Some(&number));
        assert_eq!(seen.first(), Some(&2));
    }
}

#[tokio::test]
async fn a_failed_statement_behind_a_pooler_spoils_no_other() {
    let database = Database::empty().await;
    let pooler = Pooler::before(database.url()).await;
    let pool = open(Way::ForgetsStatements, 1, pooler.url()).await;
    for _ in 0..3 {
        sqlx::query("SELECT 1 / $1").bind(0).execute(&pool).await.unwrap_err();
        assert_eq!(sqlx::query_scalar::<_, i32>("SELECT $1").bind(1).fetch_one(&pool).await.unwrap(), 1);
        let mut transaction = pool.begin().await.unwrap();
        sqlx::query("SELECT 1 / $1").bind(0).execute(&mut *transaction).await.unwrap_err();
        transaction.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_connection_that_nobody_uses_holds_no_session_behind_a_pooler() {
    let database = Database::empty().await;
    let pooler = Pooler::before(database.url()).await;
    let pool = open(Way::ForgetsStatements, CONNECTIONS, pooler.url()).await;
    let held = async || -> i64 {
        let held = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
        sqlx::query_scalar(held).fetch_one(database.pool()).await.unwrap()
    };
    let until_none_is_held = async || {
        while held().await > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, until_none_is_held()).await.expect("none after it was opened");
    let in_use = pool.acquire().await.unwrap();
    assert_eq!(held().await, 1, "who has a connection has a session");
    drop(in_use);
    tokio::time::timeout(LIMIT, until_none_is_held()).await.expect("none after it was given back");
}
