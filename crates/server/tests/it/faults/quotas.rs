//! Processes that share a tenant's quota.

use futures::future::join_all;
use postrider_testkit::{postgres::Database, stall::Stall};

use super::scene::{count, counter, until_sessions_wait};
use crate::{
    api::send_raw,
    server::{EVENTS as EVENT, Server},
};

const EVENTS: &str = "SELECT count(*) FROM postrider.events";
const LIMIT: (&str, &str) = ("POSTRIDER_TENANT_HOURLY_EVENT_LIMIT", "20");

#[tokio::test]
async fn of_two_hundred_publishers_at_two_processes_one_gets_the_last_place() {
    let database = Database::fresh().await;
    let servers = [
        Server::start_with(&database, "api", &[LIMIT]).await,
        Server::start_with(&database, "api", &[LIMIT]).await,
    ];
    let publisher = servers[0].publisher().await;
    for _ in 1..20 {
        publisher.publish("{}").await;
    }
    // The one process stands still with what it has counted, until the other has come to the same place.
    let stall = Stall::when(&database, "BEFORE INSERT ON postrider.events FOR EACH ROW", "true").await;
    let publishers = servers.iter().cycle().take(200).map(|server| publisher.at(server));
    let publishing = join_all(publishers.map(|publisher| async move { publisher.try_publish("{}").await }));
    let (answers, ()) = tokio::join!(publishing, async {
        until_sessions_wait(database.pool(), "Lock", 2).await;
        stall.end().await;
    });
    let count_of = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!((count_of(202), count_of(429)), (1, 199));
    assert_eq!(count(database.pool(), EVENTS).await, 20);
}

/// What a process had written and counted when it died was never committed: its place is free.
#[tokio::test]
async fn a_process_that_dies_before_its_commit_uses_nothing_up() {
    let database = Database::fresh().await;
    let limit = (LIMIT.0, "2");
    let killed = [limit, ("POSTRIDER_FAILPOINT", "ingest_written:kill:1")];
    let dying = Server::start_with(&database, "api", &killed).await;
    let publisher = dying.publisher().await;
    publisher.publish("[1]").await;
    let head = format!(
        "POST {EVENT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 3\r\n\r\n[2]",
        publisher.tokens()[1]
    );
    assert_eq!(send_raw(dying.address, head.as_bytes()).await, "", "it died without a word");
    let other = Server::start_with(&database, "api", &[limit]).await;
    let publisher = publisher.at(&other);
    assert_eq!(count(database.pool(), EVENTS).await, 1);
    publisher.publish("[3]").await;
    let answer = publisher.try_publish("[4]").await;
    assert_eq!((answer.status, answer.text("code").as_str()), (429, "quota_exceeded"));
}

/// More than is counted while others wait, and the database refuses to write down how much it is.
#[tokio::test]
async fn events_of_a_tenant_that_cannot_be_counted_are_refused_and_seen_in_the_metrics() {
    const REFUSED: &str = "postrider_uncounted_events_total";
    let database = Database::fresh().await;
    let server = Server::start_with(&database, "api", &[("POSTRIDER_TENANT_PENDING_LIMIT", "10000")]).await;
    let publisher = server.publisher().await;
    publisher.deliver_to("http://127.0.0.1:9/").await;
    sqlx::raw_sql(
        "INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id,
                signing_key_id, accepted_at, deadline_at, state, due_at, attempt_number, tries)
         SELECT tenant_id, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(),
                gen_random_uuid(), now(), now() + interval '1 day', 'scheduled', now() + interval '1 day', 1, 1
           FROM postrider.tenants, generate_series(1, 6000);
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
         CREATE TRIGGER fail BEFORE UPDATE OF open_at_most ON postrider.tenant_usage EXECUTE FUNCTION fail()",
    )
    .execute(database.pool())
    .await
    .unwrap();
    assert_eq!(counter(server.address, REFUSED).await, 0);
    for number in 1..=2 {
        let answer = publisher.try_publish("{}").await;
        assert_eq!((answer.status, answer.text("code").as_str()), (503, "overloaded"), "{answer:?}");
        assert_eq!(counter(server.address, REFUSED).await, number);
    }
}
