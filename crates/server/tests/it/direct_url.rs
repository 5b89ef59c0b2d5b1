//! Connections that need a session of their own go past a pooler.

use postrider_testkit::{
    postgres::Database,
    receiver::{Answer, Gate, Receiver},
};

use crate::server::Server;

/// The role stands for the way: whoever comes as it did not come through the pooler.
const DIRECT_ROLE: &str = "postrider_direct";

/// What may only run in a session of one's own: statements of the lanes, whose plans are pinned, and `LISTEN`.
const OWN_SESSIONS: &str = "SELECT query FROM pg_stat_activity
    WHERE datname = current_database() AND query NOT LIKE '%pg_stat_activity%'
      AND (query LIKE '%lock_shared%' OR query LIKE '%asked AS MATERIALIZED%' OR query LIKE 'LISTEN%'
           OR query LIKE '%SET beats = beats + 1%' OR query LIKE '%instances WHERE declared_dead_at%'
           OR query LIKE '%due AS MATERIALIZED%' OR query LIKE '%late AS MATERIALIZED%')";

#[tokio::test]
async fn the_engines_connections_go_past_a_pooler() {
    let database = Database::fresh().await;
    let create = format!(
        "DO $$ BEGIN
             IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{DIRECT_ROLE}') THEN
                 CREATE ROLE {DIRECT_ROLE} LOGIN SUPERUSER PASSWORD 'direct';
             END IF;
         END $$"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(database.pool()).await.unwrap();
    let mut direct = url::Url::parse(database.url()).unwrap();
    direct.set_username(DIRECT_ROLE).unwrap();
    direct.set_password(Some("direct")).unwrap();
    let variables = [("POSTRIDER_DIRECT_DATABASE_URL", direct.as_str())];
    let server = Server::start_with(&database, "all", &variables).await;
    let receiver = Receiver::start().await;
    let gate = Gate::default();
    receiver.queue([Answer::ok().after(&gate)]);
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let accepted = publisher.publish("[1]").await;
    receiver.wait_for(1).await;
    gate.open();
    publisher.wait_for_delivery(&accepted, "delivered").await;

    let queries = async |condition: &str| -> Vec<String> {
        let query = format!("{OWN_SESSIONS} AND {condition}");
        sqlx::query_scalar(sqlx::AssertSqlSafe(query)).fetch_all(database.pool()).await.unwrap()
    };
    let direct = queries(&format!("usename = '{DIRECT_ROLE}'")).await;
    assert!(direct.len() >= 4, "taker, heart, listener and maintenance are there: {direct:?}");
    assert_eq!(queries(&format!("usename <> '{DIRECT_ROLE}'")).await, Vec::<String>::new());
}
