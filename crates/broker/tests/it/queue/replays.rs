//! What becomes ready again by a replay, or because its worker died, is brought by messages as fresh events are.

use std::time::Duration;

use postrider_core::id::{DeliveryId, ReplayId};
use postrider_store::{
    audit::{Action, Actor, By, Change, Target},
    edit::{self, Edit},
    instances::Role,
    outbox::Audience,
    replay::{self, Filter, MAX_LETTERS, NewReplay},
    retry,
};
use postrider_testkit::{
    answer::{Answer, Gate},
    clock::{Clock as _, SystemClock},
    receiver::Receiver,
    running::Running,
};
use uuid::Uuid;

use super::{
    outages::wait_until_the_broker_is_used,
    world::{Mode, World},
};

/// Endpoints of one event: as many deliveries, for each of which there is room at once.
const ENDPOINTS: usize = 5;

/// Whoever looks into the table finds nothing for an hour.
const HIDE: &str = "
    CREATE FUNCTION public.hide() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.pending_since = clock_timestamp() + interval '1 hour';
        RETURN NEW;
    END $$;
    CREATE TRIGGER hide BEFORE INSERT OR UPDATE ON postrider.delivery_queue
        FOR EACH ROW WHEN (NEW.state = 'pending') EXECUTE FUNCTION public.hide();";

/// Each claim says whether a message led to it.
const NOTE: &str = "
    CREATE TABLE public.claims (by_name boolean NOT NULL);
    CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO public.claims VALUES (current_query() LIKE '%named.attempt_number%');
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER UPDATE ON postrider.delivery_queue
        FOR EACH ROW WHEN (OLD.state = 'pending' AND NEW.state = 'in_flight') EXECUTE FUNCTION public.note();";

const DEAD: &str = "SELECT count(*) FROM postrider.deliveries WHERE outcome = 'dead_lettered'";
const ENDED: &str = "SELECT count(*) FROM postrider.deliveries";
const BY_NAME: &str = "SELECT count(*) FROM public.claims WHERE by_name";
const BY_THE_TABLE: &str = "SELECT count(*) FROM public.claims WHERE NOT by_name";
const MESSAGES: &str =
    "SELECT coalesce(last_value, 0) FROM pg_sequences WHERE sequencename = 'outbox_outbox_id_seq'";

/// A world whose events have several deliveries each, to as many endpoints of one receiver.
async fn with_endpoints() -> World {
    let world = World::new(Mode::RabbitMq).await;
    for number in 1..ENDPOINTS {
        let url = world.receiver.url(&format!("/{number}"));
        let endpoint = world.tenant.endpoint(&format!("other-{number}"), &url).create().await;
        world.application.sends(&["*"], &endpoint).await;
    }
    world
}

async fn change(world: &World, statements: &'static str) {
    sqlx::raw_sql(statements).execute(world.database.pool()).await.expect("the statements run");
}

/// Publishes events that their receiver refuses, so that all their deliveries die.
async fn die(world: &World, engine: &Running, events: usize, letters: i64) {
    world.receiver.answer_with(|_| Answer::status(400));
    world.publish(engine, events).await;
    world.wait_for_count(DEAD, letters).await;
    world.receiver.answer_with(|_| Answer::ok());
}

async fn replay_all(world: &World) {
    let id = ReplayId::from_uuid(Uuid::now_v7());
    let new = NewReplay { id, filter: &Filter::default(), filter_text: "{}", most: MAX_LETTERS };
    let mut transaction = edit::begin(world.database.pool()).await.expect("a transaction begins");
    replay::preview(&mut transaction, world.tenant.id, new, 0).await.expect("a preview");
    replay::execute(&mut transaction, world.tenant.id, id).await.expect("it runs");
    transaction.commit().await.expect("commit");
}

/// Waits until a process has claimed what only its own publisher can have announced to its own consumer.
async fn wait_until_it_announces_and_hears(world: &World, engine: &Running) {
    let endpoints = world.count("SELECT count(*) FROM postrider.endpoints").await;
    let mut ended = world.count(ENDED).await;
    while world.count(BY_NAME).await == 0 {
        world.publish(engine, 1).await;
        ended += endpoints;
        world.wait_for_count(ENDED, ended).await;
    }
    forget_claims(world).await;
}

async fn forget_claims(world: &World) {
    change(world, "DELETE FROM public.claims").await;
}

/// No taker comes to them before: nobody is woken, and the table shows them to nobody.
#[tokio::test(flavor = "multi_thread")]
async fn the_letters_of_a_replay_are_brought_by_messages_and_sent_once() {
    let world = with_endpoints().await;
    let letters = i64::try_from(ENDPOINTS).expect("a few");
    change(&world, HIDE).await;
    change(&world, NOTE).await;
    let engine = world.engine(Role::All);
    wait_until_it_announces_and_hears(&world, &engine).await;
    let before = world.receiver.requests().len();
    die(&world, &engine, 1, letters).await;
    forget_claims(&world).await;
    replay_all(&world).await;
    world.wait_for_count(DEAD, 0).await;
    let report = world.check().await;
    assert_eq!((report.dead_lettered, report.open), (0, 0));
    assert_eq!((world.count(BY_NAME).await, world.count(BY_THE_TABLE).await), (letters, 0));
    let sent = world.receiver.requests().len() - before;
    assert_eq!(
        (sent, world.repeats()),
        (2 * ENDPOINTS, ENDPOINTS),
        "each died of one answer and had another"
    );
    engine.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_that_a_person_sends_again_is_brought_by_a_message() {
    let world = World::new(Mode::RabbitMq).await;
    change(&world, HIDE).await;
    change(&world, NOTE).await;
    let engine = world.engine(Role::All);
    wait_until_it_announces_and_hears(&world, &engine).await;
    die(&world, &engine, 1, 1).await;
    forget_claims(&world).await;
    let letter = "SELECT delivery_id FROM postrider.deliveries WHERE outcome = 'dead_lettered'";
    let letter: Uuid = sqlx::query_scalar(letter).fetch_one(world.database.pool()).await.expect("a letter");
    let id = DeliveryId::from_uuid(letter);
    let by = By { actor: Actor::Process, address: None };
    let mut edit = Edit::of_tenant(world.database.pool(), world.tenant.id, by).await.expect("it begins");
    let retried = retry::retry(&mut edit, world.tenant.id, id).await.expect("it can be sent again");
    let ready = retried.ready.expect("its endpoint is enabled").deliveries;
    let change = Change::whole(Action::DeliveryRetried, Target::of_id("delivery", id));
    edit.commit_announcing(change, Audience::Broker, &ready).await.expect("committed");
    world.wait_for_count(DEAD, 0).await;
    world.check().await;
    assert_eq!((world.count(BY_NAME).await, world.count(BY_THE_TABLE).await), (1, 0));
    assert_eq!(world.repeats(), 1);
    engine.drain().await;
}

/// What there is no room for is left to the takers: the work is not done twice for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_replay_takes_one_message_a_turn_and_sends_each_letter_once() {
    const LETTERS: usize = 200;
    /// Of 32 letters each, as long as fewer wait than the endpoint may have waiting.
    const TURNS: i64 = 7;
    let world = World::new(Mode::RabbitMq).await;
    change(&world, "UPDATE postrider.endpoints SET max_in_flight = 100").await;
    change(&world, NOTE).await;
    let engine = world.engine(Role::All);
    wait_until_it_announces_and_hears(&world, &engine).await;
    die(&world, &engine, LETTERS, 200).await;
    forget_claims(&world).await;
    let messages = world.count(MESSAGES).await;
    replay_all(&world).await;
    world.wait_for_count(DEAD, 0).await;
    let report = world.check().await;
    assert_eq!((report.dead_lettered, report.open, world.repeats()), (0, 0, LETTERS));
    assert_eq!(world.count(MESSAGES).await - messages, TURNS);
    let claims = world.count(BY_NAME).await + world.count(BY_THE_TABLE).await;
    assert_eq!(claims, 200, "each letter is claimed once");
    assert!(world.count(BY_NAME).await > 0);
    engine.drain().await;
}

/// It goes out as fast as its endpoint takes it, which takes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_is_stuck_holds_up_no_fresh_event_of_others() {
    const LETTERS: usize = 300;
    let world = World::new(Mode::RabbitMq).await;
    let hanging = Receiver::start().await;
    let slow = world.tenant.application("slow").await;
    let endpoint = world.tenant.endpoint("hanging", &hanging.url("/")).create().await;
    slow.sends(&["*"], &endpoint).await;
    let engine = world.engine(Role::All);
    wait_until_the_broker_is_used(&world, &engine).await;
    hanging.answer_with(|_| Answer::status(400));
    for _ in 0..LETTERS {
        let event = postrider_testkit::scenario::new_event("order.created", "{}", None);
        engine.publish(&slow, event).await.expect("the event is accepted");
    }
    world.wait_for_count(DEAD, 300).await;
    let gate = Gate::default();
    let held = gate.clone();
    hanging.answer_with(move |_| Answer::ok().after(&held));
    replay_all(&world).await;
    hanging.wait_for(LETTERS + 1).await;
    let (since, before) = (SystemClock::new(), world.receiver.requests().len());
    world.publish(&engine, 20).await;
    world.receiver.wait_for(before + 20).await;
    let waited = since.monotonic();
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    gate.open();
    world.wait_for_count(DEAD, 0).await;
    world.wait_for_count("SELECT count(*) FROM postrider.delivery_queue", 0).await;
    assert_eq!((hanging.requests().len(), world.repeats()), (2 * LETTERS, 0));
    engine.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_worker_held_is_brought_by_messages_and_sent_once_more() {
    let world = with_endpoints().await;
    let held = i64::try_from(ENDPOINTS).expect("a few");
    let dying = world.engine(Role::All);
    wait_until_the_broker_is_used(&world, &dying).await;
    world.wait_for_count("SELECT count(*) FROM postrider.delivery_queue", 0).await;
    let before = world.receiver.requests().len();
    world.receiver.queue((0..ENDPOINTS).map(|_| Answer::never()));
    world.publish(&dying, 1).await;
    world.receiver.wait_for(before + ENDPOINTS).await;
    drop(dying);
    change(&world, HIDE).await;
    change(&world, NOTE).await;
    let heir = world.engine(Role::All);
    wait_until_it_announces_and_hears(&world, &heir).await;
    world.declare_owners_dead().await;
    world.wait_for_count("SELECT count(*) FROM postrider.delivery_queue", 0).await;
    assert_eq!((world.count(BY_NAME).await, world.count(BY_THE_TABLE).await), (held, 0));
    let report = world.check().await;
    assert_eq!((report.dead_lettered, report.interrupted_attempts), (0, ENDPOINTS));
    assert_eq!(world.repeats(), ENDPOINTS);
    heir.drain().await;
}
