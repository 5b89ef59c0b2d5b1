//! A hundred thousand deliveries wait, and a tenant with a trickle of its own is served as if they did not.

use std::time::{Duration, Instant};

use postrider_core::id::ReplayId;
use postrider_store::{
    edit,
    replay::{self, Filter, MAX_LETTERS, NewReplay},
};
use postrider_testkit::{
    answer::Answer,
    copies,
    ledger::{Accepted, Expectation, Ledger},
    postgres::Database,
    receiver::Receiver,
    running::Running,
    scenario::{Application, Scenario, Tenant, new_event},
};
use uuid::Uuid;

use crate::replay::DIE;

const ENDPOINTS: usize = 10;
const EVENTS: usize = 4;
/// How often there is each event, so that there are a hundred thousand deliveries.
const COPIES: i32 = 2_500;
const CROWD: i64 = 100_000;
/// Deliveries of the tenant with a trickle.
const TRICKLE: usize = 40;
/// None of them takes longer from its acceptance, while the crowd takes a minute and more. Without a crowd it is some
/// milliseconds; this is a build without optimisation, on a machine that others use, too.
const SOON: Duration = Duration::from_secs(2);

const WAITING: &str = "SELECT count(*) FROM postrider.delivery_queue WHERE state = 'pending'";
const LEFT: &str = "SELECT sum(items_left) FROM postrider.replay_endpoints";

struct World {
    database: Database,
    crowded: Tenant,
    quiet: Application,
    receiver: Receiver,
    crowd: Receiver,
}

impl World {
    /// A tenant whose endpoints answer at once and have a hundred thousand deliveries waiting, and another one.
    async fn new() -> Self {
        let database = Database::fresh().await;
        let (crowd, receiver) = (Receiver::start().await, Receiver::start().await);
        let scenario = Scenario::new(database.pool().clone());
        let (crowded, tenant) = (scenario.tenant("acme").await, scenario.tenant("globex").await);
        let application = crowded.application("crowd").await;
        for number in 0..ENDPOINTS {
            let endpoint = crowded.endpoint(&format!("crowd-{number}"), &crowd.url("/")).create().await;
            application.sends(&["*"], &endpoint).await;
        }
        for _ in 0..EVENTS {
            application.publish("order.created", "{}").await;
        }
        copies::multiply(database.pool(), COPIES).await;
        let quiet = tenant.application("quiet").await;
        let endpoint = tenant.endpoint("quiet", &receiver.url("/")).create().await;
        quiet.sends(&["*"], &endpoint).await;
        let world = Self { database, crowded, quiet, receiver, crowd };
        assert_eq!(world.count(WAITING).await, CROWD);
        world
    }

    async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(self.database.pool()).await.expect("a count")
    }

    /// Publishes one event after the other, each when the one before has arrived. `left` counts what is left of the crowd.
    #[expect(clippy::disallowed_methods, reason = "how long a tenant waits is what the tenant measures")]
    async fn trickle(self, engine: Running, left: &'static str) {
        // The endpoint is known then, and so is the crowd.
        let mut accepted = vec![self.publish(&engine).await];
        self.receiver.wait_for(1).await;
        let mut longest = Duration::ZERO;
        for number in 2..=TRICKLE {
            let began = Instant::now();
            accepted.push(self.publish(&engine).await);
            self.receiver.wait_for(number).await;
            longest = longest.max(began.elapsed());
        }
        let left = self.count(left).await;
        assert!(left > CROWD / 10, "the crowd was gone: {left} are left");
        assert!(longest < SOON, "{longest:?}");
        drop(engine);
        let ledger = Ledger { accepted, ..Ledger::default() };
        let ledger = ledger.with_receiver(&self.receiver).with_receiver(&self.crowd);
        // The crowd goes nowhere any more, and what was in flight is nobody's until somebody looks.
        let expectation = Expectation { poll: Duration::from_secs(3_600), everything_ended: false };
        ledger.check(self.database.pool(), expectation).await;
    }

    async fn publish(&self, engine: &Running) -> Accepted {
        let event = new_event("order.created", "{}", None);
        let body = event.body.clone();
        let accepted = engine.publish(&self.quiet, event).await.expect("it is accepted");
        Accepted { event_id: accepted.event_id, key: None, deliveries: accepted.deliveries, body }
    }
}

#[tokio::test]
async fn a_trickle_is_served_beside_a_hundred_thousand_that_wait() {
    let world = World::new().await;
    let engine = Running::start(&world.database);
    world.trickle(engine, WAITING).await;
}

#[tokio::test]
async fn a_trickle_is_served_beside_a_replay_of_a_hundred_thousand() {
    let world = World::new().await;
    sqlx::query(DIE).execute(world.database.pool()).await.expect("they die");
    let engine = Running::start(&world.database);
    let id = ReplayId::from_uuid(Uuid::now_v7());
    let new = NewReplay { id, filter: &Filter::default(), filter_text: "{}", most: MAX_LETTERS };
    let mut transaction = edit::begin(world.database.pool()).await.expect("a transaction begins");
    replay::preview(&mut transaction, world.crowded.id, new, 0).await.expect("a preview");
    replay::execute(&mut transaction, world.crowded.id, id).await.expect("it runs");
    transaction.commit().await.expect("commit");
    world.trickle(engine, LEFT).await;
}

/// Where the crowd's endpoints answer nothing.
#[tokio::test]
async fn a_trickle_is_served_beside_a_hundred_thousand_that_cannot_be_sent() {
    let world = World::new().await;
    world.crowd.answer_with(|_| Answer::never());
    let engine = Running::start(&world.database);
    world.trickle(engine, WAITING).await;
}
