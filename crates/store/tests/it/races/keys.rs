//! Two processes and one idempotency key.

use postrider_core::id::EventId;
use postrider_store::{
    ingest::{Batch, NewEvent, Stored},
    lanes::Lane,
};
use postrider_testkit::{
    scenario::new_event,
    stall::{self, Stall},
};
use sqlx::PgConnection;

use super::{marked_lane, plain_lane, wait_for_waiting};
use crate::hot_path::{World, world};

/// Stores the events, under the keys given, in one batch and in this order.
async fn store(world: &World, connection: &mut PgConnection, events: &[NewEvent]) -> Batch {
    let routing = world.application.routing().await;
    world.store(connection, &routing, &events.iter().collect::<Vec<_>>()).await
}

fn events(keys: [&str; 2]) -> [NewEvent; 2] {
    keys.map(|key| new_event("order.created", "{}", Some(key)))
}

fn duplicate(event_id: EventId) -> Stored {
    Stored::Duplicate { event_id, deliveries: 1 }
}

/// Each has its first key and asks for the other's: if the keys were taken in the order of the batches, neither could
/// go on.
#[tokio::test]
async fn batches_with_the_same_keys_in_another_order_do_not_deadlock() {
    let world = world().await;
    let second_row = format!("{} AND {}", stall::MARKED, stall::row(2));
    let event = "BEFORE INSERT ON postrider.idempotency_keys FOR EACH ROW";
    let stall = Stall::when(&world.database, event, &second_row).await;
    let (first, second) = (events(["zulu", "alpha"]), events(["alpha", "zulu"]));
    let (mut stopped, mut other) =
        (marked_lane(&world, Lane::Ingest).await, plain_lane(&world, Lane::Ingest).await);
    let (one, two, ()) = tokio::join!(
        store(&world, &mut stopped, &first),
        async {
            wait_for_waiting(world.database.pool(), 1).await;
            store(&world, &mut other, &second).await
        },
        async {
            wait_for_waiting(world.database.pool(), 2).await;
            stall.end().await;
        }
    );
    assert_eq!(one.stored, [Stored::New; 2]);
    assert_eq!(two.stored, [duplicate(first[1].event_id), duplicate(first[0].event_id)]);
}

/// The snapshot of the statement that lost is older than the winner's commit.
#[tokio::test]
async fn the_loser_of_a_key_is_told_of_a_winner_that_commits_while_it_waits() {
    let world = world().await;
    let stall = Stall::at(&world.database, "BEFORE INSERT ON postrider.events FOR EACH ROW").await;
    let (won, lost) = (events(["one", "two"]), events(["two", "three"]));
    let (mut stopped, mut other) =
        (marked_lane(&world, Lane::Ingest).await, plain_lane(&world, Lane::Ingest).await);
    let (winner, loser, ()) = tokio::join!(
        store(&world, &mut stopped, &won),
        async {
            wait_for_waiting(world.database.pool(), 1).await;
            store(&world, &mut other, &lost).await
        },
        async {
            wait_for_waiting(world.database.pool(), 2).await;
            stall.end().await;
        }
    );
    assert_eq!(winner.stored, [Stored::New; 2]);
    assert_eq!(loser.stored, [duplicate(won[1].event_id), Stored::New]);
}
