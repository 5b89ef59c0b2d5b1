//! Somebody else takes the same locks in the opposite order. The product gives way, tries again apart from the rest, and
//! neither loses nor repeats anything.

use postrider_core::event::KeySpace;
use postrider_testkit::{
    ledger::Ledger,
    postgres::Database,
    receiver::{Answer, Gate, Receiver},
};
use sqlx::{Connection, PgConnection, PgTransaction};
use tokio::task::JoinSet;

use super::{
    load::promised,
    scene::{OVER, count, set_default, until, until_nothing_is_open, until_sessions_wait},
};
use crate::server::Server;

const DEADLOCKS: &str = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";

/// Takes a key as another publisher of the application would.
async fn take_key(transaction: &mut PgTransaction<'_>, key: &str) {
    let take =
        "INSERT INTO postrider.idempotency_keys (application_id, key_space, idempotency_key, fingerprint,
                       event_id, delivery_count, accepted_at)
                SELECT application_id, $1, $2, '', gen_random_uuid(), 0, now()
                  FROM postrider.applications WHERE name = 'orders'";
    let take = sqlx::query(take).bind(KeySpace::Events.number()).bind(key);
    take.execute(&mut **transaction).await.unwrap();
}

/// A session in which PostgreSQL never looks for a deadlock, so that the other side is the one that gives way.
async fn obstinate(database: &Database) -> PgConnection {
    let mut session = PgConnection::connect(database.url()).await.unwrap();
    sqlx::raw_sql("SET deadlock_timeout = '1h'").execute(&mut session).await.unwrap();
    session
}

#[tokio::test]
async fn an_event_caught_in_a_deadlock_is_tried_again_and_accepted() {
    let database = Database::fresh().await;
    // By default PostgreSQL looks after a second, and the shared lane waits for no lock so long.
    set_default(database.pool(), "deadlock_timeout", "50ms").await;
    let receiver = Receiver::start().await;
    let server = Server::start(&database, "api").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;

    // Storing an event locks its application, then its key. This goes the other way round.
    let mut session = obstinate(&database).await;
    let mut opposite = session.begin().await.unwrap();
    take_key(&mut opposite, "order-1").await;
    let mut publishing = JoinSet::new();
    let eager = publisher.clone();
    publishing.spawn(async move { eager.try_publish_under("order-1", "[1]").await });
    until_sessions_wait(database.pool(), "transactionid", 1).await;
    let lock = "SELECT pg_advisory_xact_lock(postrider.plan_lock_key(application_id))
                  FROM postrider.applications WHERE name = 'orders'";
    sqlx::raw_sql(lock).execute(&mut *opposite).await.unwrap();
    opposite.rollback().await.unwrap();
    let answer = publishing.join_next().await.unwrap().unwrap();
    assert_eq!(answer.status, 202, "{answer:?}");
    until("PostgreSQL counts a deadlock", async || count(database.pool(), DEADLOCKS).await > 0).await;

    let _delivering = Server::start(&database, "worker").await;
    receiver.wait_for(1).await;
    until_nothing_is_open(database.pool()).await;
    let ledger = Ledger { accepted: vec![promised(&answer, "order-1", b"[1]")], ..Ledger::default() };
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!((report.events, report.delivered, report.repeated_requests), (1, 1, 0));
}

#[tokio::test]
async fn results_that_meet_locks_in_the_opposite_order_are_written_when_they_are_gone() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gate = Gate::default();
    let held = gate.clone();
    receiver.answer_with(move |_| Answer::ok().after(&held));
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let accepted = vec![publisher.publish("[1]").await, publisher.publish("[2]").await];
    receiver.wait_for(2).await;

    let mut session = obstinate(&database).await;
    let mut opposite = session.begin().await.unwrap();
    let lock = "SELECT 1 FROM postrider.delivery_queue WHERE event_id = $1 FOR UPDATE";
    let last = accepted[1].event_id.as_uuid();
    sqlx::query(lock).bind(last).execute(&mut *opposite).await.unwrap();
    gate.open();
    until_sessions_wait(database.pool(), "Lock", 1).await;
    let first = accepted[0].event_id.as_uuid();
    sqlx::query(lock).bind(first).execute(&mut *opposite).await.unwrap();
    // It has tried once more meanwhile, in vain.
    until_sessions_wait(database.pool(), "Lock", 1).await;
    opposite.rollback().await.unwrap();

    until_nothing_is_open(database.pool()).await;
    let ledger = Ledger { accepted, ..Ledger::default() }.with_receiver(&receiver);
    let report = ledger.check(database.pool(), OVER).await;
    assert_eq!((report.delivered, report.attempts, report.repeated_requests), (2, 2, 0));
}
