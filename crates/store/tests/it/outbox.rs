//! The outbox, statement by statement: who gets which messages, for how long, and what leaves.

use std::time::Duration;

use postrider_core::{
    id::LeaseToken,
    queue::{self, Pointer, Route},
};
use postrider_store::{
    ingest::{self, Item, Onward},
    lanes::{self, Lane},
    outbox::{self, Audience, Claim, Held, Message, Patience},
    recover::{self, Dead},
    take,
};
use postrider_testkit::{postgres::Database, scenario::new_event};
use sqlx::{Connection as _, PgConnection};

use crate::{
    hot_path::{HOUR, planned, world},
    plans::assert_no_table_is_read_whole,
};

const NOBODY: &[i64] = &[];

async fn connect(database: &Database) -> PgConnection {
    let options = database.url().parse().expect("a database URL");
    lanes::connect(&options, Lane::Outbox).await.expect("a connection")
}

/// A database with so many messages, and two publishers.
async fn with_messages(count: u8) -> (Database, PgConnection, PgConnection) {
    let database = Database::fresh().await;
    let (mut one, other) = (connect(&database).await, connect(&database).await);
    add(&mut one, count).await;
    (database, one, other)
}

async fn add(connection: &mut PgConnection, count: u8) {
    let message =
        |number| Message { route: Route::Ready, payload: vec![number], deliveries: 1, reason: None };
    let messages: Vec<Message> = (1..=count).map(message).collect();
    outbox::add(connection, &messages).await.expect("the messages are written");
}

async fn claim(connection: &mut PgConnection, published: &[i64], limit: u16) -> Vec<Held> {
    claim_for(connection, published, limit, HOUR).await
}

async fn claim_for(
    connection: &mut PgConnection,
    published: &[i64],
    limit: u16,
    hold: Duration,
) -> Vec<Held> {
    let claim = Claim { from: i64::MIN, limit, hold };
    outbox::advance(connection, published, claim).await.expect("the outbox can be read")
}

fn numbers(held: &[Held]) -> Vec<u8> {
    held.iter().map(|held| held.payload[0]).collect()
}

fn ids(held: &[Held]) -> Vec<i64> {
    held.iter().map(|held| held.outbox_id).collect()
}

async fn end_holds(connection: &mut PgConnection) {
    sqlx::query(
        "UPDATE postrider.outbox SET claimed_until = now() - interval '1 s' WHERE claimed_until IS NOT NULL",
    )
    .execute(connection)
    .await
    .expect("time passes");
}

#[tokio::test]
async fn what_is_accepted_and_the_message_about_it_are_stored_together() {
    let mut world = world().await;
    let routing = world.application.routing().await;
    let events = [(); 3].map(|()| new_event("order.created", "{}", None));
    let plans = [&events[0], &events[1], &events[2]].map(|event| planned(&routing, event));
    let items: Vec<Item<'_>> = events
        .iter()
        .zip(&plans)
        .map(|(event, deliveries)| Item { routing: &routing, event, deliveries })
        .collect();
    for is_kept in [false, true] {
        let mut transaction = world.lane.begin().await.expect("a transaction begins");
        ingest::insert(&mut transaction, &items, Onward::Outbox).await.expect("the batch runs");
        let ended = if is_kept { transaction.commit().await } else { transaction.rollback().await };
        ended.expect("it ends");
        let messages: Vec<Vec<u8>> = sqlx::query_scalar("SELECT payload FROM postrider.outbox")
            .fetch_all(world.database.pool())
            .await
            .expect("the outbox can be read");
        assert_eq!(messages.len(), usize::from(is_kept), "one for the batch");
        assert_eq!(world.states().await.len(), if is_kept { 3 } else { 0 });
        let mut named: Vec<_> = messages
            .iter()
            .flat_map(|message| queue::read(message).expect("a message"))
            .map(|pointer| (pointer.delivery_id, pointer.attempt_number))
            .collect();
        named.sort_unstable();
        let mut expected: Vec<_> = plans.iter().flatten().map(|planned| (planned.delivery_id, 0)).collect();
        expected.sort_unstable();
        assert_eq!(named, if is_kept { expected } else { Vec::new() });
    }
}

#[tokio::test]
async fn the_oldest_go_first_and_no_two_publishers_get_the_same() {
    let (_database, mut one, mut other) = with_messages(10).await;
    // One has not committed yet: the other one does not wait for it.
    let mut open = one.begin().await.expect("a transaction begins");
    assert_eq!(numbers(&claim(&mut open, NOBODY, 4).await), [1, 2, 3, 4]);
    assert_eq!(numbers(&claim(&mut other, NOBODY, 4).await), [5, 6, 7, 8]);
    open.commit().await.expect("the claim is committed");
    assert_eq!(numbers(&claim(&mut other, NOBODY, 4).await), [9, 10]);
    assert_eq!(claim(&mut one, NOBODY, 4).await, []);
}

#[tokio::test]
async fn a_publisher_that_ends_before_its_commit_holds_nothing() {
    let (_database, mut one, mut other) = with_messages(2).await;
    let mut open = one.begin().await.expect("a transaction begins");
    assert_eq!(claim(&mut open, NOBODY, 4).await.len(), 2);
    open.rollback().await.expect("it ends");
    assert_eq!(numbers(&claim(&mut other, NOBODY, 4).await), [1, 2]);
}

#[tokio::test]
async fn a_hold_that_has_ended_is_anybodys() {
    let (_database, mut one, mut other) = with_messages(3).await;
    assert_eq!(claim(&mut one, NOBODY, 2).await.len(), 2);
    assert_eq!(numbers(&claim(&mut other, NOBODY, 9).await), [3]);
    end_holds(&mut one).await;
    assert_eq!(numbers(&claim(&mut other, NOBODY, 9).await), [1, 2, 3]);
}

#[tokio::test]
async fn what_is_published_leaves_and_what_is_given_back_is_free_at_once() {
    let (_database, mut one, mut other) = with_messages(5).await;
    let held = ids(&claim(&mut one, NOBODY, 4).await);
    outbox::give_back(&mut one, &held[..1], &held[1..3]).await.expect("they are given back");
    // The first is gone and the fourth is held.
    assert_eq!(numbers(&claim(&mut other, NOBODY, 9).await), [2, 3, 5]);
    // Whoever removes does not get the same once more, though the hold may have ended meanwhile.
    end_holds(&mut one).await;
    let all = ids(&claim_for(&mut one, NOBODY, 9, Duration::ZERO).await);
    assert_eq!(all.len(), 4);
    end_holds(&mut one).await;
    assert_eq!(claim(&mut one, &all, 9).await, []);
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM postrider.outbox")
        .fetch_one(&mut other)
        .await
        .expect("a count");
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_look_begins_where_it_is_told() {
    let (_database, mut one, mut other) = with_messages(5).await;
    let held = claim_for(&mut one, NOBODY, 9, Duration::ZERO).await;
    end_holds(&mut one).await;
    let claim = Claim { from: held[3].outbox_id, limit: 9, hold: HOUR };
    let found = outbox::advance(&mut other, NOBODY, claim).await.expect("the outbox can be read");
    assert_eq!(numbers(&found), [4, 5]);
}

/// Messages by their queue, with what each names.
async fn named(database: &Database) -> Vec<(String, Vec<Pointer>)> {
    let messages: Vec<(String, Vec<u8>)> =
        sqlx::query_as("SELECT route, payload FROM postrider.outbox ORDER BY route DESC, outbox_id")
            .fetch_all(database.pool())
            .await
            .expect("the outbox can be read");
    let read = |(route, payload): (_, Vec<u8>)| (route, queue::read(&payload).expect("a message"));
    messages.into_iter().map(read).collect()
}

#[tokio::test]
async fn what_is_taken_back_from_the_dead_and_the_messages_about_it_are_written_together() {
    let mut world = world().await;
    for _ in 0..3 {
        world.application.publish("order.created", "{}").await;
    }
    let mut ids: Vec<_> = world.take(3).await.iter().map(|claimed| claimed.delivery.run.id).collect();
    ids.sort_unstable();
    sqlx::query(
        "UPDATE postrider.delivery_queue SET tries = 1000, attempt_number = 1000 WHERE delivery_id = $1",
    )
    .bind(ids[2].as_uuid())
    .execute(world.database.pool())
    .await
    .expect("its tries are used up");
    let dead = Dead { owners: &[world.me], me: world.me, known: &[], unknown_after: HOUR };
    let pointer = |delivery_id| Pointer {
        tenant_id: world.tenant.id,
        endpoint_id: world.endpoint.id,
        delivery_id,
        attempt_number: 1,
    };
    for (audience, is_kept) in
        [(Audience::Broker, false), (Audience::Nobody, false), (Audience::Broker, true)]
    {
        let mut transaction = world.lane.begin().await.expect("a transaction begins");
        let recovered = recover::recover(&mut transaction, &dead, audience, 100).await.expect("it runs");
        assert_eq!((recovered.again, recovered.dead_lettered), (2, 1));
        let written: i64 = sqlx::query_scalar("SELECT count(*) FROM postrider.outbox")
            .fetch_one(&mut *transaction)
            .await
            .expect("a count");
        assert_eq!(written, if audience == Audience::Broker { 2 } else { 0 }, "{audience:?}");
        let ended = if is_kept { transaction.commit().await } else { transaction.rollback().await };
        ended.expect("it ends");
        let expected = [
            (Route::Ready.to_string(), vec![pointer(ids[0]), pointer(ids[1])]),
            (Route::Dead.to_string(), vec![Pointer { attempt_number: 1_000, ..pointer(ids[2]) }]),
        ];
        assert_eq!(named(&world.database).await, expected[..if is_kept { 2 } else { 0 }]);
        let states: &[&str] = if is_kept { &["pending"; 2] } else { &["in_flight"; 3] };
        assert_eq!(world.states().await, states);
    }
    let lease =
        take::Lease { owner: world.me, token: LeaseToken::from_uuid(uuid::Uuid::now_v7()), hard_limit: HOUR };
    let pointers = [pointer(ids[0]), pointer(ids[1])];
    let taken = take::take_named(&mut world.lane, &pointers, lease).await.expect("the queue can be read");
    assert_eq!(taken.claimed.len(), 2, "they are named at the attempt that they stand at");
}

/// While the broker is away the table tells the same.
#[tokio::test]
async fn what_has_waited_for_long_is_forgotten_and_what_people_are_to_see_later() {
    let (_database, mut one, _other) = with_messages(3).await;
    let dead = Message { route: Route::Dead, payload: vec![4], deliveries: 1, reason: None };
    outbox::add(&mut one, &[dead]).await.expect("the message is written");
    sqlx::query("UPDATE postrider.outbox SET created_at = now() - interval '1 h' WHERE payload <> '\\x03'")
        .execute(&mut one)
        .await
        .expect("time passes");
    let patience = Patience { for_workers: Duration::from_secs(60), for_people: 2 * HOUR };
    assert_eq!(outbox::forget(&mut one, patience, 1).await.expect("a portion"), 1);
    assert_eq!(outbox::forget(&mut one, patience, 9).await.expect("a portion"), 1);
    assert_eq!(outbox::forget(&mut one, patience, 9).await.expect("a portion"), 0);
    assert_eq!(numbers(&claim(&mut one, NOBODY, 9).await), [3, 4]);
    let patience = Patience { for_people: HOUR, ..patience };
    assert_eq!(
        outbox::forget(&mut one, patience, 9).await.expect("a portion"),
        1,
        "people have had their time"
    );
}

/// Neither waits for the other.
#[tokio::test]
async fn whoever_gives_messages_up_passes_over_those_that_another_has_in_hand() {
    let (_database, mut one, mut other) = with_messages(3).await;
    let mut open = one.begin().await.expect("a transaction begins");
    assert_eq!(numbers(&claim(&mut open, NOBODY, 2).await), [1, 2]);
    let patience = Patience { for_workers: Duration::ZERO, for_people: Duration::ZERO };
    assert_eq!(outbox::forget(&mut other, patience, 9).await.expect("nobody is waited for"), 1);
    open.commit().await.expect("the claim is committed");
    assert_eq!(outbox::forget(&mut other, patience, 9).await.expect("a portion"), 2);
}

/// Messages by the thousand, half of them held by others.
const FILL: &str = "
    ALTER TABLE postrider.outbox SET (autovacuum_enabled = false);
    INSERT INTO postrider.outbox (route, payload, deliveries, claimed_until)
    SELECT 'postrider.ready', '\\x01', 1, CASE WHEN n % 2 = 0 THEN now() + interval '1 h' END
      FROM generate_series(1, 20000) n";

#[tokio::test]
async fn no_statement_of_a_publisher_reads_the_whole_outbox() {
    let database = Database::fresh().await;
    let mut administration = connect(&database).await;
    for (change, when) in [
        ("SELECT 1", "empty"),
        (FILL, "full, not analysed"),
        ("ANALYZE postrider.outbox", "full"),
        ("DELETE FROM postrider.outbox", "bloated"),
        ("ANALYZE postrider.outbox", "bloated and analysed"),
        ("VACUUM postrider.outbox", "vacuumed while empty"),
        (FILL, "full, vacuumed while empty"),
    ] {
        sqlx::raw_sql(change).execute(&mut administration).await.expect("the table changes");
        let mut publisher = connect(&database).await;
        add(&mut publisher, 3).await;
        let held = ids(&claim(&mut publisher, NOBODY, 2).await);
        outbox::give_back(&mut publisher, &held[..1], &held[1..]).await.expect("they are given back");
        // Writing, claiming, giving back.
        assert_no_table_is_read_whole(&mut publisher, 3, when).await;
    }
}

/// Statistics of the quiet hours must not decide about the outage: with a plan for an empty outbox it looked through everything
/// once for each message.
#[tokio::test]
async fn many_messages_are_forgotten_under_statistics_of_an_empty_outbox() {
    const MANY: i32 = 20_000;
    const LIMIT: u16 = 1_000;
    let (database, mut one, _other) = with_messages(1).await;
    let patience = Patience { for_workers: Duration::from_secs(60), for_people: Duration::from_secs(3_600) };
    for statement in ["DELETE FROM postrider.outbox", "VACUUM ANALYZE postrider.outbox"] {
        sqlx::raw_sql(statement).execute(database.pool()).await.expect("it is quiet");
    }
    // So often that the plan is kept.
    for _ in 0..10 {
        assert_eq!(outbox::forget(&mut one, patience, LIMIT).await.expect("a look"), 0);
    }
    sqlx::query(
        "INSERT INTO postrider.outbox (route, payload, deliveries, created_at)
         SELECT 'postrider.ready', '', 1, now() - interval '2 minutes' FROM generate_series(1, $1)",
    )
    .bind(MANY)
    .execute(database.pool())
    .await
    .expect("an outage");
    for left in (0..MANY / i32::from(LIMIT)).rev() {
        let forgotten = outbox::forget(&mut one, patience, LIMIT).await.expect("within the statement's time");
        assert_eq!(forgotten, u64::from(LIMIT), "{left} are left");
    }
    assert_eq!(outbox::forget(&mut one, patience, LIMIT).await.expect("a look"), 0);
}
