//! What a broker hears of a replay: each letter that is pending again, in the transaction that moves it.

use std::time::Duration;

use postrider_core::{
    id::{InstanceId, LeaseToken},
    queue::{self, Pointer},
};
use postrider_store::{
    failpoint::{self, Action, Plan, Point},
    lanes::{self, Lane},
    outbox::Audience,
    replay::{self, Load, Portion},
    take,
};
use uuid::Uuid;

use super::{NO_REST, OPEN, World, options};

const MESSAGES: &str = "SELECT count(*) FROM postrider.outbox";
/// More than one message holds.
const LETTERS: usize = queue::MOST_POINTERS + 2;

fn all(_: Load) -> Portion {
    Portion { letters: 100, rest: NO_REST }
}

impl World {
    /// Gives each of the two endpoints a turn with all its letters.
    async fn turns_for(&mut self, audience: Audience) {
        for _ in 0..2 {
            let step = replay::next(&mut self.lane, self.history.tenant.id).await.expect("a look");
            step.expect("a turn").advance(audience, all).await.expect("the turn is taken");
        }
    }

    /// What the messages name, and how many each of them.
    async fn announced(&self) -> (Vec<Pointer>, Vec<i32>) {
        let messages: Vec<(String, Vec<u8>, i32)> =
            sqlx::query_as("SELECT route, payload, deliveries FROM postrider.outbox ORDER BY outbox_id")
                .fetch_all(self.history.pool())
                .await
                .expect("the outbox can be read");
        assert!(messages.iter().all(|(route, ..)| route == "postrider.ready"), "{messages:?}");
        let named = messages.iter().flat_map(|(_, payload, _)| queue::read(payload).expect("a message"));
        (named.collect(), messages.iter().map(|(.., deliveries)| *deliveries).collect())
    }
}

/// Each letter once, at the attempt that its row has: so whoever gets the messages can claim all of them.
#[tokio::test]
async fn the_messages_name_exactly_the_letters_that_are_pending_again() {
    let mut world = World::with_letters(LETTERS).await;
    world.running().await;
    world.turns_for(Audience::Broker).await;
    let (named, counts) = world.announced().await;
    assert_eq!(counts, [64, 2, 64, 2], "those of one turn share messages");
    let mut ids: Vec<_> = named.iter().map(|pointer| pointer.delivery_id).collect();
    ids.sort_unstable();
    world.letters.sort_unstable();
    assert_eq!(ids, world.letters);
    let lease = take::Lease {
        owner: InstanceId::from_uuid(Uuid::now_v7()),
        token: LeaseToken::from_uuid(Uuid::now_v7()),
        hard_limit: Duration::from_secs(60),
    };
    let taken = take::take_named(&mut world.lane, &named, lease).await.expect("the queue can be read");
    assert_eq!((taken.claimed.len(), taken.early.len()), (2 * LETTERS, 0));
    for (place, claimed) in taken.claimed {
        let Pointer { tenant_id, endpoint_id, delivery_id, attempt_number } = named[place];
        assert_eq!((claimed.tenant_id, claimed.endpoint_id), (tenant_id, endpoint_id));
        let run = claimed.delivery.run;
        assert_eq!((run.id, run.attempt_number, run.tries), (delivery_id, attempt_number + 1, 1));
    }
}

#[tokio::test]
async fn a_turn_that_is_cut_off_before_its_commit_leaves_neither_letters_nor_messages() {
    let mut world = World::with_letters(2).await;
    let replay = world.running().await;
    let plan = Plan { point: Point::ReplayMoved, action: Action::Hang, passes: 0 };
    failpoint::arm(plan);
    let mut dying = lanes::connect(&options(&world.history), Lane::Work).await.expect("a connection");
    let step = replay::next(&mut dying, world.history.tenant.id).await.expect("a look").expect("a turn");
    tokio::select! {
        advanced = step.advance(Audience::Broker, all) => panic!("it goes no further: {advanced:?}"),
        () = async {
            while failpoint::hung() == 0 {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    failpoint::disarm();
    // Everything is written; its process ends.
    drop(dying);
    let of_the_dead = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    while world.count(of_the_dead).await > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!((world.count(OPEN).await, world.count(MESSAGES).await), (0, 0));
    assert_eq!(world.look(replay.id).await.replayed, 0);
    world.turns_for(Audience::Broker).await;
    assert_eq!((world.count(OPEN).await, world.count(MESSAGES).await), (4, 2));
}

#[tokio::test]
async fn what_is_held_is_announced_to_nobody() {
    let mut world = World::with_letters(3).await;
    world.history.warehouse.set_enabled(false).await;
    world.running().await;
    world.turns_for(Audience::Broker).await;
    assert_eq!(world.count(OPEN).await, 6);
    let (named, counts) = world.announced().await;
    assert_eq!(counts, [3]);
    assert!(named.iter().all(|pointer| pointer.endpoint_id != world.history.warehouse.id), "{named:?}");
}

#[tokio::test]
async fn without_a_broker_nothing_is_announced() {
    let mut world = World::with_letters(3).await;
    world.running().await;
    world.turns_for(Audience::Nobody).await;
    assert_eq!((world.count(OPEN).await, world.count(MESSAGES).await), (6, 0));
}
