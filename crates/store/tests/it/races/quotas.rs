//! Processes that store events of one tenant at once, near the end of its quota.

use std::sync::Arc;

use postrider_core::quota::Settings;
use postrider_store::{
    applications::{self, NewApplication},
    edit,
    ingest::{NewEvent, Stored},
    lanes::Lane,
    quota::Known,
    routing::Routing,
    tenants,
};
use postrider_testkit::{
    scenario::{new_event, peppers},
    stall::Stall,
};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{marked_lane, plain_lane, wait_for_waiting};
use crate::hot_path::{World, world};

const STORING: &str = "BEFORE INSERT ON postrider.events FOR EACH ROW";

async fn metered(hourly_events: u64) -> (World, Arc<Routing>) {
    let world = world().await;
    world.tenant.limit(&Settings { hourly_events: Some(hourly_events), ..Settings::default() }).await;
    let routing = world.application.routing().await;
    (world, routing)
}

fn events(count: usize) -> Vec<NewEvent> {
    std::iter::repeat_with(|| new_event("order.created", "{}", None)).take(count).collect()
}

async fn store(
    world: &World,
    connection: &mut PgConnection,
    routing: &Routing,
    events: &[NewEvent],
) -> Vec<Stored> {
    let known = Known::default();
    world.store_metered(connection, routing, &known, &events.iter().collect::<Vec<_>>()).await
}

fn count(stored: &[Stored]) -> (usize, usize) {
    let new = stored.iter().filter(|stored| **stored == Stored::New).count();
    (new, stored.iter().filter(|stored| matches!(stored, Stored::OverQuota(_))).count())
}

/// Eight sessions, as of eight processes, with 25 events each, none of whom knows of the others.
#[tokio::test]
async fn of_two_hundred_events_at_the_last_place_exactly_one_is_stored() {
    let (world, routing) = metered(100).await;
    let mut first = plain_lane(&world, Lane::IngestMetered).await;
    assert_eq!(count(&store(&world, &mut first, &routing, &events(99)).await), (99, 0));
    let mut sessions = Vec::new();
    for _ in 0..8 {
        sessions.push(plain_lane(&world, Lane::IngestMetered).await);
    }
    let stores = sessions.iter_mut().map(|session| {
        let (world, routing) = (&world, &routing);
        async move { store(world, session, routing, &events(25)).await }
    });
    let all: Vec<Stored> = futures::future::join_all(stores).await.concat();
    assert_eq!(count(&all), (1, 199));
    assert_eq!(world.states().await.len(), 100);
}

#[tokio::test]
async fn whoever_waited_for_the_row_is_told_of_what_was_stored_meanwhile() {
    let (world, routing) = metered(2).await;
    let stall = Stall::at(&world.database, STORING).await;
    let key = |body: &'static str| new_event("order.created", body, Some("one"));
    let (first, duplicate, conflict) = ([key("{}")], key("{}"), key("{ }"));
    let event_id = first[0].event_id;
    let (mut stopped, mut other) =
        (marked_lane(&world, Lane::IngestMetered).await, plain_lane(&world, Lane::IngestMetered).await);
    let known = Known::default();
    let (won, waited, ()) = tokio::join!(
        store(&world, &mut stopped, &routing, &first),
        async {
            wait_for_waiting(world.database.pool(), 1).await;
            let [second, third] = [(), ()].map(|()| new_event("order.created", "{}", None));
            let batch = [&second, &third, &duplicate, &conflict];
            world.store_metered(&mut other, &routing, &known, &batch).await
        },
        async {
            wait_for_waiting(world.database.pool(), 2).await;
            stall.end().await;
        }
    );
    assert_eq!(won, [Stored::New]);
    assert_eq!((waited[0], count(&waited)), (Stored::New, (1, 1)));
    assert_eq!(waited[2..], [Stored::Duplicate { event_id, deliveries: 1 }, Stored::Conflict { event_id }]);
}

/// A change takes the tenant's row and then the plans, as storing does: the other way round they would wait in a circle.
#[tokio::test]
async fn a_change_of_limits_waits_for_what_is_being_stored_and_makes_its_plan_stale() {
    let (world, routing) = metered(10).await;
    let stall = Stall::at(&world.database, STORING).await;
    let (mut stopped, mut other) =
        (marked_lane(&world, Lane::IngestMetered).await, plain_lane(&world, Lane::IngestMetered).await);
    let (one, another) = (events(1), events(1));
    let none = Settings { hourly_events: Some(0), ..Settings::default() };
    let (stored, (), ()) = tokio::join!(
        store(&world, &mut stopped, &routing, &one),
        async {
            wait_for_waiting(world.database.pool(), 1).await;
            world.tenant.limit(&none).await;
        },
        async {
            wait_for_waiting(world.database.pool(), 2).await;
            stall.end().await;
        }
    );
    assert_eq!(stored, [Stored::New]);
    assert_eq!(store(&world, &mut other, &routing, &another).await, [Stored::Stale]);
    assert!(!world.application.routing().await.limits.quotas.is_any());
}

/// Without the lock on the list of applications the change would not see the new one, and whoever read it before the
/// change was committed would store under the old limits for ever.
#[tokio::test]
async fn an_application_that_is_born_beside_a_change_of_limits_does_not_slip_past_it() {
    let (world, _) = metered(10).await;
    let mut birth = edit::begin(world.database.pool()).await.expect("a transaction begins");
    let id = Uuid::now_v7().into();
    let token_hash = &peppers().hashes(&world.tenant.owner_token);
    let new = NewApplication { id, name: &"invoices".parse().expect("a name"), token_hash };
    applications::create(&mut birth, world.tenant.id, new).await.expect("made");
    let limits = Settings { hourly_events: Some(1), ..Settings::default() };
    let ((), ()) = tokio::join!(world.tenant.limit(&limits), async {
        wait_for_waiting(world.database.pool(), 1).await;
        birth.commit().await.expect("committed");
    });
    let versions: Vec<i64> = sqlx::query_scalar(
        "SELECT routing_version FROM postrider.applications WHERE application_id = $1 AND tenant_id = $2",
    )
    .bind(Uuid::from(id))
    .bind(world.tenant.id.as_uuid())
    .fetch_all(world.database.pool())
    .await
    .expect("the application");
    assert_eq!(versions, [2]);
    let mut transaction = edit::begin(world.database.pool()).await.expect("a transaction begins");
    tenants::lock_limits(&mut transaction, world.tenant.id).await.expect("nobody holds it any more");
}

/// A batch has its tenant's row and comes to its plan later: whoever took them the other way round would wait in a circle
/// with it, and whoever did not take the row would not wait.
#[tokio::test]
async fn a_change_of_limits_waits_for_a_batch_that_has_not_come_to_its_plan_yet() {
    let open = |most| Settings { open_deliveries: Some(most), ..Settings::default() };
    let world = world().await;
    world.tenant.limit(&open(10)).await;
    let routing = world.application.routing().await;
    // It counts what is open before it stores anything.
    let mut held = edit::begin(world.database.pool()).await.expect("a transaction begins");
    let lock = "LOCK TABLE postrider.delivery_queue IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(lock).execute(&mut *held).await.expect("locked");
    let (mut lane, one) = (plain_lane(&world, Lane::IngestMetered).await, events(1));
    let (stored, (), ()) = tokio::join!(
        store(&world, &mut lane, &routing, &one),
        async {
            wait_for_waiting(world.database.pool(), 1).await;
            world.tenant.limit(&open(5)).await;
        },
        async {
            wait_for_waiting(world.database.pool(), 2).await;
            held.rollback().await.expect("let go");
        }
    );
    assert_eq!(stored, [Stored::New]);
}

/// Nobody takes the row of a tenant without quotas: it is the plan that a change waits for, and what was stored meanwhile is
/// counted.
#[tokio::test]
async fn a_first_quota_waits_for_what_is_being_stored_without_one() {
    let world = world().await;
    let routing = world.application.routing().await;
    let stall = Stall::at(&world.database, STORING).await;
    let (mut stopped, mut other) =
        (marked_lane(&world, Lane::Ingest).await, plain_lane(&world, Lane::IngestMetered).await);
    let (one, another) = (events(1), events(1));
    let first = Settings { open_deliveries: Some(1), ..Settings::default() };
    let (stored, (), ()) = tokio::join!(
        async { world.store(&mut stopped, &routing, &one.iter().collect::<Vec<_>>()).await.stored },
        async {
            wait_for_waiting(world.database.pool(), 1).await;
            world.tenant.limit(&first).await;
        },
        async {
            wait_for_waiting(world.database.pool(), 2).await;
            stall.end().await;
        }
    );
    assert_eq!(stored, [Stored::New]);
    let routing = world.application.routing().await;
    let refused = store(&world, &mut other, &routing, &another).await;
    assert_eq!(count(&refused), (0, 1), "the place is taken");
}
