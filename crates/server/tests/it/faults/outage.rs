//! A receiver is away, thousands of deliveries wait for it, and it comes back: it is asked for one at first, then for no
//! more at once than its endpoint says, and gets each.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use postrider_testkit::{
    ledger::{Accepted, Ledger},
    postgres::Database,
    receiver::{Answer, Receiver},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::scene::{OVER, count, until, until_nothing_is_open};
use crate::{
    api::call,
    server::{Publisher, Server, accepted},
};

const MAX_IN_FLIGHT: u16 = 4;
/// Batches of as many events as one may have.
const BATCHES: usize = 3;
const BATCH: usize = 1_000;
const EVENTS: i64 = 3_000;
/// How long the receiver takes for the first request after it is back: so long that everything else waits by then.
const FIRST: Duration = Duration::from_millis(700);
const OTHERS: Duration = Duration::from_millis(10);

async fn publish_batch(publisher: &Publisher, number: usize) -> Vec<Accepted> {
    let data = |item: usize| format!("[{number},{item}]");
    let events: Vec<Value> =
        (0..BATCH).map(|item| json!({ "type": "order.created", "data": [number, item] })).collect();
    let body = json!({ "events": events }).to_string();
    let path = "/api/tenants/acme/applications/orders/events";
    let answer = call(publisher.address, "POST", path, publisher.tokens()[1], &body).await;
    let results = answer.body["results"].as_array().unwrap_or_else(|| panic!("{answer:?}"));
    let result = |(item, result): (usize, &Value)| {
        let answer = crate::api::Answer { status: 202, body: result.clone() };
        accepted(&answer, data(item).as_bytes())
    };
    results.iter().enumerate().map(result).collect()
}

/// The receiver is back: it answers after a while, and notes how many requests it has at once.
fn come_back(receiver: &Receiver) -> Arc<AtomicUsize> {
    let (most, now, seen) =
        (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), AtomicUsize::new(0));
    let (noted, ending) = (Arc::clone(&most), Mutex::<JoinSet<()>>::default());
    receiver.answer_with(move |_| {
        noted.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        let delay = if seen.fetch_add(1, SeqCst) == 0 { FIRST } else { OTHERS };
        let now = Arc::clone(&now);
        // Somewhat before the answer, so that the next request is never counted beside the one it follows.
        ending.lock().expect("no test panics in between").spawn(async move {
            tokio::time::sleep(delay / 2).await;
            now.fetch_sub(1, SeqCst);
        });
        Answer::ok().late(delay)
    });
    most
}

#[tokio::test]
async fn a_receiver_that_comes_back_to_thousands_that_wait_is_asked_carefully() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.answer_with(|_| Answer::status(503));
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let terms =
        json!({ "maxInFlight": MAX_IN_FLIGHT, "retry": { "initialDelayMs": 2_000, "maxDelayMs": 2_000 } });
    publisher.manage("PATCH", "/endpoints/warehouse", terms, 200).await;
    let mut ledger = Ledger::default();
    for number in 0..BATCHES {
        ledger.accepted.extend(publish_batch(&publisher, number).await);
    }
    until("each was tried", async || {
        count(database.pool(), "SELECT count(DISTINCT delivery_id) FROM postrider.attempts").await == EVENTS
    })
    .await;
    server.program.terminate();
    assert_eq!(server.program.ended().await.code, Some(0));
    let tried = count(database.pool(), "SELECT count(*) FROM postrider.attempts").await;
    until("everything is due", async || {
        let later = "SELECT count(*) FROM postrider.delivery_queue WHERE due_at > now()";
        count(database.pool(), later).await == 0
    })
    .await;

    let most = come_back(&receiver);
    let server = Server::start(&database, "all").await;
    until_nothing_is_open(database.pool()).await;
    let most = most.load(SeqCst);
    assert!((2..=usize::from(MAX_IN_FLIGHT)).contains(&most), "{most} requests at once");
    // How long after the first of them the next one began.
    let pause = "SELECT (extract(epoch FROM max(started_at) - min(started_at)) * 1000)::bigint
                   FROM (SELECT started_at FROM postrider.attempts ORDER BY started_at OFFSET $1 LIMIT 2) AS a";
    let pause: i64 = sqlx::query_scalar(pause).bind(tried).fetch_one(database.pool()).await.unwrap();
    assert!(u128::try_from(pause).unwrap() >= FIRST.as_millis() * 9 / 10, "the next one after {pause} ms");
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!((report.delivered, report.dead_lettered), (BATCHES * BATCH, 0));
    drop(server);
}
