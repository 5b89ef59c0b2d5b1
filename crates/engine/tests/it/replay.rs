//! Replays through the engine: letters come back only as fast as their endpoint takes them, and hold up nobody.

use std::{cell::Cell, collections::HashSet};

use postrider_core::id::ReplayId;
use postrider_engine::maintenance::replay::Replay as Job;
use postrider_store::{
    edit,
    lanes::{self, Lane},
    outbox::Audience,
    replay::{self, Filter, MAX_LETTERS, NewReplay, Replay, Status},
};
use postrider_testkit::{
    answer::{Answer, Gate},
    postgres::Database,
    receiver::{Receiver, Request},
    running::Running,
    scenario::{Application, Endpoint, NewEndpoint, Scenario, Tenant},
};
use sqlx::PgPool;
use uuid::Uuid;

use crate::delivery::{wait_for_count, wait_until_nothing_is_open};

/// Everything that is open dies.
pub(crate) const DIE: &str = "
    WITH ended AS (DELETE FROM postrider.delivery_queue RETURNING *)
    INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id,
           accepted_at, ended_at, outcome, dead_reason, attempt_number)
    SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, now(),
           'dead_lettered', 'attempts_exhausted', attempt_number
      FROM ended";

const REPLAYED: &str = "SELECT count(*) FROM postrider.deliveries WHERE outcome = 'delivered'";
const DEAD: &str = "SELECT count(*) FROM postrider.deliveries WHERE outcome = 'dead_lettered'";

struct World {
    database: Database,
    receiver: Receiver,
    tenant: Tenant,
}

impl World {
    async fn new() -> Self {
        let (database, receiver) = (Database::fresh().await, Receiver::start().await);
        let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
        Self { database, receiver, tenant }
    }

    fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    /// An endpoint and an application of the same name that sends it everything.
    async fn pair(
        &self,
        name: &str,
        describe: impl FnOnce(NewEndpoint<'_>) -> NewEndpoint<'_>,
    ) -> (Application, Endpoint) {
        let application = self.tenant.application(name).await;
        let url = self.receiver.url(&format!("/{name}"));
        let endpoint = describe(self.tenant.endpoint(name, &url)).create().await;
        application.sends(&["*"], &endpoint).await;
        (application, endpoint)
    }

    async fn die(&self, application: &Application, letters: usize) {
        for _ in 0..letters {
            application.publish("order.created", r#"{"old":true}"#).await;
        }
        sqlx::query(DIE).execute(self.pool()).await.expect("they die");
    }

    async fn replay_all(&self) -> ReplayId {
        self.replay_all_of(&self.tenant).await
    }

    async fn replay_all_of(&self, tenant: &Tenant) -> ReplayId {
        let id = ReplayId::from_uuid(Uuid::now_v7());
        let new = NewReplay { id, filter: &Filter::default(), filter_text: "{}", most: MAX_LETTERS };
        let mut transaction = edit::begin(self.pool()).await.expect("a transaction begins");
        replay::preview(&mut transaction, tenant.id, new, 0).await.expect("a preview");
        replay::execute(&mut transaction, tenant.id, id).await.expect("it runs");
        transaction.commit().await.expect("commit");
        id
    }

    async fn look(&self, id: ReplayId) -> Replay {
        let mut connection = self.pool().acquire().await.expect("a connection");
        replay::get(&mut connection, self.tenant.id, id).await.expect("read").expect("it exists")
    }

    async fn wait_until_finished(&self, id: ReplayId) -> Replay {
        loop {
            let replay = self.look(id).await;
            if replay.status == Status::Finished {
                return replay;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).fetch_one(self.pool()).await.expect("a count")
    }

    /// Returns when the replay's only endpoint has had so many more turns.
    async fn turns(&self, count: usize) {
        let due = "SELECT coalesce(extract(epoch FROM max(due_at)) * 1000000, 0)::bigint FROM postrider.replay_endpoints";
        for _ in 0..count {
            let before = self.count(due).await;
            while self.count(due).await == before {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_is_sent_a_few_letters_and_not_a_history() {
    /// Eight for each of the two requests that the endpoint may have in flight.
    const WINDOW: i64 = 16;
    const LETTERS: usize = 100;
    let world = World::new().await;
    let gate = Gate::default();
    let held = gate.clone();
    world.receiver.answer_with(move |_| Answer::ok().after(&held));
    let (application, _) = world.pair("shop", |endpoint| endpoint.max_in_flight(2)).await;
    world.die(&application, LETTERS).await;
    let engine = Running::start(&world.database);
    let replay = world.replay_all().await;
    world.receiver.wait_for(1).await;
    let pending = "SELECT count(*) FROM postrider.delivery_queue WHERE state = 'pending'";
    wait_for_count(world.pool(), pending, WINDOW).await;
    for _ in 0..3 {
        world.turns(1).await;
        assert_eq!(world.count(pending).await, WINDOW, "it is full, and stays as it is");
    }
    // One at first, and another once it turns out to be slow.
    let in_flight =
        world.count("SELECT count(*) FROM postrider.delivery_queue WHERE state = 'in_flight'").await;
    assert!((1..=2).contains(&in_flight), "{in_flight} requests at once");
    assert_eq!(world.count(DEAD).await, 100 - WINDOW - in_flight);

    application.publish("order.created", r#"{"fresh":true}"#).await;
    gate.open();
    let ended = world.wait_until_finished(replay).await;
    assert_eq!(ended.replayed, 100);
    wait_until_nothing_is_open(world.pool()).await;
    engine.drain().await;
    let requests = world.receiver.requests();
    let fresh = requests.iter().position(|request| &*request.body == br#"{"fresh":true}"#);
    assert!(fresh.is_some_and(|place| place <= 20), "the fresh event was sent as number {fresh:?}");
    let ids: HashSet<&str> = requests.iter().map(Request::webhook_id).collect();
    assert_eq!((requests.len(), ids.len()), (LETTERS + 1, LETTERS + 1), "each once");
}

#[tokio::test]
async fn an_endpoint_that_takes_nothing_holds_up_no_other_of_its_replay() {
    let world = World::new().await;
    world.receiver.answer_with(
        |request| {
            if request.target() == "/stuck" { Answer::never() } else { Answer::ok() }
        },
    );
    let (stuck, _) = world.pair("stuck", |endpoint| endpoint.max_in_flight(1)).await;
    let (quick, _) = world.pair("quick", |endpoint| endpoint.max_in_flight(4)).await;
    world.die(&stuck, 50).await;
    world.die(&quick, 150).await;
    let engine = Running::start(&world.database);
    let replay = world.replay_all().await;
    wait_for_count(world.pool(), REPLAYED, 150).await;
    let shown = world.look(replay).await;
    assert_eq!(
        (shown.status, shown.replayed),
        (Status::Running, 150 + 9),
        "one in flight and eight that wait"
    );
    drop(engine);
}

#[tokio::test]
async fn letters_of_a_disabled_endpoint_are_held_and_go_out_when_it_is_enabled() {
    let world = World::new().await;
    let (application, endpoint) = world.pair("shop", |endpoint| endpoint).await;
    world.die(&application, 20).await;
    endpoint.set_enabled(false).await;
    let engine = Running::start(&world.database);
    let replay = world.replay_all().await;
    world.wait_until_finished(replay).await;
    let held = "SELECT count(*) FROM postrider.delivery_queue WHERE state = 'held'";
    assert_eq!(world.count(held).await, 20);
    assert_eq!(world.receiver.requests().len(), 0);
    endpoint.set_enabled(true).await;
    wait_for_count(world.pool(), REPLAYED, 20).await;
    engine.drain().await;
}

/// Whoever replays little need not wait for whoever replays much, however many endpoints that is about.
#[tokio::test]
async fn tenants_take_turns() {
    const ENDPOINTS: usize = 60;
    let world = World::new().await;
    for number in 0..ENDPOINTS {
        let (application, _) = world.pair(&format!("many-{number}"), |endpoint| endpoint).await;
        application.publish("order.created", "{}").await;
    }
    let globex = Scenario::new(world.pool().clone()).tenant("globex").await;
    let application = globex.application("few").await;
    for name in ["few-1", "few-2"] {
        let few = globex.endpoint(name, &world.receiver.url("/few")).create().await;
        application.sends(&["*"], &few).await;
    }
    world.die(&application, 1).await;
    for tenant in [&world.tenant, &globex] {
        world.replay_all_of(tenant).await;
    }
    let options = world.database.url().parse().expect("a URL");
    let mut lane = lanes::connect(&options, Lane::Work).await.expect("a connection");
    let of_few =
        "SELECT count(*) FROM postrider.delivery_queue q JOIN postrider.endpoints e USING (endpoint_id)
                   WHERE e.name LIKE 'few%'";
    let mut slow = Job::default();
    for of_few_so_far in [0, 1] {
        let time_for = Cell::new(1);
        let is_over = || time_for.replace(0) == 0;
        let pass = slow.turns(&mut lane, Audience::Nobody, is_over).await.expect("a pass");
        assert_eq!(pass.turns, 1, "then the time is over");
        assert_eq!(world.count(of_few).await, of_few_so_far, "the next pass goes on with the other tenant");
    }
    let pass = Job::default().turns(&mut lane, Audience::Nobody, || false).await.expect("a pass");
    assert!(pass.moved < ENDPOINTS as u64 - 1, "a pass has fewer turns than the first tenant has endpoints");
    assert_eq!(world.count(of_few).await, 2, "and the other tenant's was among them");
}

#[tokio::test]
async fn several_processes_share_a_replay_and_send_each_letter_once() {
    let world = World::new().await;
    let mut letters = 0;
    for name in ["one", "two", "three"] {
        let (application, _) = world.pair(name, |endpoint| endpoint.max_in_flight(4)).await;
        world.die(&application, 60).await;
        letters += 60;
    }
    let engines = [Running::start(&world.database), Running::start(&world.database)];
    let replay = world.replay_all().await;
    let ended = world.wait_until_finished(replay).await;
    assert_eq!((ended.replayed, ended.skipped.total()), (letters, 0));
    wait_for_count(world.pool(), REPLAYED, letters.into()).await;
    for engine in engines {
        engine.drain().await;
    }
    let requests = world.receiver.requests();
    let ids: HashSet<&str> = requests.iter().map(Request::webhook_id).collect();
    assert_eq!((requests.len(), ids.len()), (letters as usize, letters as usize));
}
