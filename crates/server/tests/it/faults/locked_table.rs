//! Somebody alters a table, or waits for others to let him, and everything that needs it queues up behind: publishers
//! are told to come back, and are taken when it is over.

use postrider_testkit::{ledger::Ledger, postgres::Database};
use sqlx::AssertSqlSafe;

use super::scene::{OVER, count};
use crate::{api::send_raw, server::Server};

#[tokio::test]
async fn publishers_are_told_to_come_back_while_a_table_is_locked() {
    let database = Database::fresh().await;
    let server = Server::start(&database, "api").await;
    let publisher = server.publisher().await;
    let mut accepted = vec![publisher.publish("[0]").await];
    let [_, token] = publisher.tokens();
    let head = "POST /api/tenants/acme/applications/orders/events/order.created HTTP/1.1\r\nhost: x\r\n";
    let rest = "content-type: application/json\r\ncontent-length: 3\r\nconnection: close\r\n\r\n[1]";
    let request = format!("{head}authorization: Bearer {token}\r\n{rest}");
    for table in ["applications", "events"] {
        let mut alteration = database.pool().begin().await.unwrap();
        let lock = format!("LOCK TABLE postrider.{table} IN ACCESS EXCLUSIVE MODE");
        sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *alteration).await.unwrap();
        let refused = send_raw(server.address, request.as_bytes()).await;
        assert!(refused.starts_with("HTTP/1.1 503 "), "{table}: {refused}");
        assert!(refused.to_lowercase().contains("\r\nretry-after: "), "{table}: {refused}");
        assert!(refused.contains("(its application, its key or a table) is locked"), "{table}: {refused}");
        alteration.rollback().await.unwrap();
        accepted.push(publisher.publish("[2]").await);
    }
    let stored = count(database.pool(), "SELECT count(*) FROM postrider.events").await;
    assert_eq!(stored, 3, "nothing that was refused");
    Ledger { accepted, ..Ledger::default() }.check(database.pool(), OVER).await;
}
