//! A database whose sessions are stricter by default than Postrider expects: what is read after a lock must still be what
//! is true then.

use postrider_testkit::{ledger::Ledger, postgres::Database, receiver::Receiver};
use sqlx::Connection;

use super::scene::{OVER, set_default, until_nothing_is_open, until_sessions_wait};
use crate::server::Server;

#[tokio::test]
async fn a_stricter_default_isolation_does_not_let_events_out_to_whom_was_just_disabled() {
    let database = Database::fresh().await;
    set_default(database.pool(), "default_transaction_isolation", "repeatable read").await;
    let receiver = Receiver::start().await;
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    // Its plan is in memory from here on.
    let first = publisher.publish("[1]").await;
    receiver.wait_for(1).await;

    // An edit that is under way while the next event comes in.
    let mut session = sqlx::PgConnection::connect(database.url()).await.unwrap();
    let mut edit = session.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await.unwrap();
    for statement in [
        "SELECT pg_advisory_xact_lock(postrider.plan_lock_key(application_id))
           FROM postrider.applications WHERE name = 'orders'",
        "UPDATE postrider.subscriptions SET enabled = false",
        "UPDATE postrider.applications SET routing_version = routing_version + 1 WHERE name = 'orders'",
    ] {
        sqlx::raw_sql(statement).execute(&mut *edit).await.unwrap();
    }
    let publishing = publisher.publish("[2]");
    let committing = async {
        until_sessions_wait(database.pool(), "advisory", 1).await;
        edit.commit().await.unwrap();
    };
    let (second, ()) = tokio::join!(publishing, committing);
    assert_eq!(second.deliveries, 0, "the subscription was disabled before the event was stored");
    until_nothing_is_open(database.pool()).await;
    let ledger = Ledger { accepted: vec![first, second], ..Ledger::default() }.with_receiver(&receiver);
    let report = ledger.check(database.pool(), OVER).await;
    assert_eq!((report.events, report.delivered), (2, 1));
}
