//! A receiver is away, fifty thousand deliveries wait for it, and it comes back: it is asked for one at first, then for no
//! more at once than its endpoint says, and gets each.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use postrider_core::id::EventId;
use postrider_testkit::{
    copies,
    ledger::{Accepted, Ledger},
    postgres::Database,
    receiver::{Answer, Gate, Receiver},
};
use serde_json::json;
use sqlx::PgPool;
use tokio::{task::JoinSet, time::timeout};

use super::scene::{OVER, PATIENCE, count, until, until_nothing_is_open};
use crate::server::{Publisher, Server, accepted_item};

const MAX_IN_FLIGHT: u16 = 8;
/// Events that are published, one batch, and tried in vain.
const TRIED: usize = 1_000;
/// How many there are of each when the receiver comes back.
const COPIES: i32 = 50;
const WAITING: usize = 50_000;
/// How long the receiver takes for the first request after it is back: so long that everything else waits by then.
const FIRST: Duration = Duration::from_millis(700);
/// And for each of the others: hardly anything, so that it is sent as many as may be sent.
const OTHERS: Duration = Duration::from_millis(1);

async fn publish_batch(publisher: &Publisher) -> Vec<Accepted> {
    let bodies: Vec<String> = (0..TRIED).map(|item| format!("[{item}]")).collect();
    let results = publisher.publish_batch(&bodies).await;
    results.iter().zip(&bodies).map(|(result, body)| accepted_item(result, body)).collect()
}

/// Makes the thousand that were tried fifty thousand, each of which is promised as they are.
async fn multiply(pool: &PgPool, ledger: &mut Ledger) {
    let copied = copies::multiply(pool, COPIES).await;
    let of: HashMap<EventId, &Accepted> =
        ledger.accepted.iter().map(|accepted| (accepted.event_id, accepted)).collect();
    let promised: Vec<Accepted> =
        copied.iter().map(|copy| Accepted { event_id: copy.event_id, ..of[&copy.of].clone() }).collect();
    ledger.accepted.extend(promised);
}

/// The receiver is back: it answers after a while, and notes how many requests it has at once.
fn come_back(receiver: &Receiver) -> Arc<AtomicUsize> {
    let (most, now, seen) =
        (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), AtomicUsize::new(0));
    let (noted, answering) = (Arc::clone(&most), Mutex::<JoinSet<()>>::default());
    receiver.answer_with(move |_| {
        noted.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        let delay = if seen.fetch_add(1, SeqCst) == 0 { FIRST } else { OTHERS };
        let (now, gate) = (Arc::clone(&now), Gate::default());
        let answer = Answer::ok().after(&gate);
        let mut answering = answering.lock().expect("no test panics in between");
        while answering.try_join_next().is_some() {}
        // It is over before it is answered, so that the next request is never counted beside the one it follows.
        answering.spawn(async move {
            tokio::time::sleep(delay).await;
            now.fetch_sub(1, SeqCst);
            gate.open();
        });
        answer
    });
    most
}

#[tokio::test]
async fn a_receiver_that_comes_back_to_fifty_thousand_that_wait_is_asked_carefully() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.answer_with(|_| Answer::status(503));
    let server = Server::start(&database, "all").await;
    let publisher = server.publisher().await;
    publisher.deliver_to(&receiver.url("/")).await;
    let terms =
        json!({ "maxInFlight": MAX_IN_FLIGHT, "retry": { "initialDelayMs": 2_000, "maxDelayMs": 2_000 } });
    publisher.manage("PATCH", "/endpoints/warehouse", terms, 200).await;
    let mut ledger = Ledger { accepted: publish_batch(&publisher).await, ..Ledger::default() };
    until("each was tried", async || {
        let tried = "SELECT count(DISTINCT delivery_id) FROM postrider.attempts";
        usize::try_from(count(database.pool(), tried).await) == Ok(TRIED)
    })
    .await;
    server.program.terminate();
    assert_eq!(server.program.ended().await.code, Some(0));
    multiply(database.pool(), &mut ledger).await;
    let tried = count(database.pool(), "SELECT count(*) FROM postrider.attempts").await;
    until("everything is due", async || {
        let due = "SELECT count(*) FROM postrider.delivery_queue WHERE coalesce(due_at, now()) <= now()";
        usize::try_from(count(database.pool(), due).await) == Ok(WAITING)
    })
    .await;

    let in_vain = receiver.requests().len();
    let most = come_back(&receiver);
    let server = Server::start(&database, "all").await;
    for tenth in 1..=10 {
        let arrived = receiver.wait_for(in_vain + tenth * WAITING / 10);
        timeout(PATIENCE, arrived).await.unwrap_or_else(|_| panic!("only {} tenths came", tenth - 1));
    }
    until_nothing_is_open(database.pool()).await;
    let most = most.load(SeqCst);
    assert!((2..=usize::from(MAX_IN_FLIGHT)).contains(&most), "{most} requests at once");
    // How long after the first of them the next one began.
    let pause = "SELECT (extract(epoch FROM max(started_at) - min(started_at)) * 1000)::bigint
                   FROM (SELECT started_at FROM postrider.attempts ORDER BY started_at OFFSET $1 LIMIT 2) AS a";
    let pause: i64 = sqlx::query_scalar(pause).bind(tried).fetch_one(database.pool()).await.unwrap();
    assert!(u128::try_from(pause).unwrap() >= FIRST.as_millis() * 9 / 10, "the next one after {pause} ms");
    let report = ledger.with_receiver(&receiver).check(database.pool(), OVER).await;
    assert_eq!((report.events, report.delivered, report.dead_lettered), (WAITING, WAITING, 0));
    assert_eq!(report.repeated_requests, in_vain, "once it was back, each was sent once");
    drop(server);
}
