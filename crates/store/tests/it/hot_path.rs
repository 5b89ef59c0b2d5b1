//! The statements of the hot path, one by one: what they change, what they leave alone, and who may change it.

use std::{num::NonZeroU16, time::Duration};

use postrider_core::{
    delivery::{Delivered, LeaseId, Next, Scheduled},
    id::{EndpointId, InstanceId, LeaseToken},
    plan,
};
use postrider_store::{
    Error, hold,
    ingest::{self, Batch, Item, NewEvent, Planned, Stored},
    lanes::{self, Lane},
    outbox::Audience,
    promote,
    quota::Known,
    recover::{self, Dead},
    routing::Routing,
    settle::{self, Attempt, Settlement},
    take::{self, Ask, Claimed},
};
use postrider_testkit::{
    postgres::Database,
    scenario::{Application, Endpoint, Scenario, Tenant, new_event},
};
use sqlx::PgConnection;
use uuid::Uuid;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) struct World {
    pub(crate) database: Database,
    pub(crate) tenant: Tenant,
    pub(crate) application: Application,
    pub(crate) endpoint: Endpoint,
    /// A connection of the lane that takes and settles.
    pub(crate) lane: PgConnection,
    pub(crate) me: InstanceId,
}

pub(crate) async fn world() -> World {
    let database = Database::fresh().await;
    let tenant = Scenario::new(database.pool().clone()).tenant("acme").await;
    let application = tenant.application("orders").await;
    let endpoint = tenant.endpoint("warehouse", "http://127.0.0.1:9/").create().await;
    application.sends(&["*"], &endpoint).await;
    let options = database.url().parse().expect("a database URL");
    let lane = lanes::connect(&options, Lane::Work).await.expect("a connection");
    World { database, tenant, application, endpoint, lane, me: InstanceId::from_uuid(Uuid::now_v7()) }
}

impl World {
    pub(crate) async fn take(&mut self, limit: u16) -> Vec<Claimed> {
        self.take_of(self.endpoint.id, limit).await
    }

    async fn take_of(&mut self, endpoint_id: EndpointId, limit: u16) -> Vec<Claimed> {
        let lease =
            take::Lease { owner: self.me, token: LeaseToken::from_uuid(Uuid::now_v7()), hard_limit: HOUR };
        let ask = Ask { endpoint_id, limit, low_water: None };
        take::take(&mut self.lane, &[ask], lease).await.expect("the queue can be read")
    }

    pub(crate) async fn settle(&mut self, settlements: &[Settlement]) -> Vec<bool> {
        settle::settle(&mut self.lane, &settlements.iter().collect::<Vec<_>>())
            .await
            .expect("the results can be written")
    }

    async fn recover(&mut self, owners: &[InstanceId], known: &[LeaseId], unknown_after: Duration) -> usize {
        let dead = Dead { owners, me: self.me, known, unknown_after };
        let recovered = recover::recover(&mut self.lane, &dead, Audience::Nobody, 100)
            .await
            .expect("leases can be taken back");
        recovered.again + recovered.dead_lettered
    }

    pub(crate) async fn states(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT state FROM postrider.delivery_queue ORDER BY delivery_id")
            .fetch_all(self.database.pool())
            .await
            .expect("states")
    }

    async fn run_batch(&self, events: &[&NewEvent]) -> Vec<Stored> {
        let mut connection = self.database.pool().acquire().await.expect("a connection");
        self.store(&mut connection, &*self.application.routing().await, events).await.stored
    }

    /// Stores the events in one batch and in this order, as planned by `routing`.
    pub(crate) async fn store(
        &self,
        connection: &mut PgConnection,
        routing: &Routing,
        events: &[&NewEvent],
    ) -> Batch {
        let plans: Vec<Vec<Planned>> = events.iter().map(|event| planned(routing, event)).collect();
        let planned = events.iter().zip(&plans);
        let items: Vec<Item<'_>> =
            planned.map(|(event, deliveries)| Item { routing, event, deliveries }).collect();
        let mut batch = ingest::insert(connection, &items, ingest::Onward::Table(self.lease()))
            .await
            .expect("the batch runs");
        ingest::resolve_taken_keys(connection, &items, &mut batch.stored)
            .await
            .expect("owners are looked up");
        batch
    }

    /// The same for events of tenants that have quotas.
    pub(crate) async fn store_metered(
        &self,
        connection: &mut PgConnection,
        routing: &Routing,
        known: &Known,
        events: &[&NewEvent],
    ) -> Vec<Stored> {
        self.try_store_metered(connection, routing, known, events).await.expect("the batch runs")
    }

    pub(crate) async fn try_store_metered(
        &self,
        connection: &mut PgConnection,
        routing: &Routing,
        known: &Known,
        events: &[&NewEvent],
    ) -> Result<Vec<Stored>, Error> {
        let plans: Vec<Vec<Planned>> = events.iter().map(|event| planned(routing, event)).collect();
        let planned = events.iter().zip(&plans);
        let items: Vec<Item<'_>> =
            planned.map(|(event, deliveries)| Item { routing, event, deliveries }).collect();
        let mut batch =
            ingest::insert_metered(connection, &items, ingest::Onward::Table(self.lease()), known).await?;
        ingest::resolve_taken_keys(connection, &items, &mut batch.stored).await?;
        Ok(batch.stored)
    }

    fn lease(&self) -> ingest::Lease {
        ingest::Lease { owner: self.me, hard_limit: HOUR }
    }
}

pub(crate) fn planned(routing: &Routing, event: &NewEvent) -> Vec<Planned> {
    let endpoints = plan::fan_out(&routing.rules, &event.event_type);
    (1..)
        .zip(endpoints)
        .map(|(place, endpoint_id)| Planned {
            delivery_id: event.event_id.delivery(NonZeroU16::new(place).expect("places start at 1")),
            endpoint_id,
            signing_key_id: routing.endpoints[&endpoint_id].signing_key_id,
            max_age: HOUR,
            lease: None,
        })
        .collect()
}

pub(crate) fn delivered(claimed: &Claimed) -> Settlement {
    let run = claimed.delivery.run;
    let next = Next::Delivered(Delivered { id: run.id, attempt_number: run.attempt_number });
    Settlement::attempted(claimed.tenant_id, &claimed.delivery, attempt(), next)
}

pub(crate) fn scheduled(claimed: &Claimed, delay: Duration) -> Settlement {
    let next = Next::Scheduled(Scheduled { run: claimed.delivery.run, delay });
    Settlement::attempted(claimed.tenant_id, &claimed.delivery, attempt(), next)
}

fn attempt() -> Attempt {
    let some_time = Duration::from_millis(12);
    Attempt {
        started_ago: some_time,
        latency: some_time,
        status: Some(200),
        failure: None,
        registry_version: None,
    }
}

#[tokio::test]
async fn a_batch_answers_each_item_for_itself() {
    let world = world().await;
    let first = new_event("order.created", "{}", Some("one"));
    let again = new_event("order.created", "{}", Some("one"));
    let clash = new_event("order.created", "{ }", Some("one"));
    let other = new_event("order.created", "{}", Some("two"));
    let keyless = new_event("order.created", "{}", None);
    let stored = world.run_batch(&[&first, &again, &clash, &other, &keyless]).await;
    let event_id = first.event_id;
    let duplicate = Stored::Duplicate { event_id, deliveries: 1 };
    let conflict = Stored::Conflict { event_id };
    assert_eq!(stored, [Stored::New, duplicate, conflict, Stored::New, Stored::New]);
    // The same over a later transaction.
    assert_eq!(world.run_batch(&[&clash, &again]).await, [conflict, duplicate]);
    assert_eq!(world.states().await, ["pending"; 3]);
}

#[tokio::test]
async fn a_plan_that_was_changed_stores_nothing() {
    let world = world().await;
    let routing = world.application.routing().await;
    world.endpoint.set_enabled(false).await;
    let event = new_event("order.created", "{}", Some("one"));
    let mut connection = world.database.pool().acquire().await.expect("a connection");
    let batch = world.store(&mut connection, &routing, &[&event]).await;
    assert_eq!(batch.stored, [Stored::Stale]);
    drop(connection);
    assert!(world.states().await.is_empty());
    assert_eq!(world.run_batch(&[&event]).await, [Stored::New], "under the new plan the key is free");
    assert!(world.states().await.is_empty(), "and nobody gets the event");
}

#[tokio::test]
async fn taking_gives_the_oldest_first_and_never_twice() {
    let mut world = world().await;
    let mut expected = Vec::new();
    for _ in 0..5 {
        expected.extend(world.application.publish("order.created", "{}").await.deliveries);
    }
    let first = world.take(3).await;
    let second = world.take(10).await;
    let ids = |claimed: &[Claimed]| claimed.iter().map(|claimed| claimed.delivery.run.id).collect::<Vec<_>>();
    assert_eq!((ids(&first), ids(&second)), (expected[..3].to_vec(), expected[3..].to_vec()));
    assert!(
        first.iter().all(|claimed| claimed.delivery.run.attempt_number == 1 && claimed.content.is_some())
    );
    assert!(world.take(10).await.is_empty());
}

#[tokio::test]
async fn taking_passes_over_disabled_endpoints_and_late_deliveries() {
    let mut world = world().await;
    world.application.publish("order.created", "{}").await;
    world.endpoint.set_enabled(false).await;
    assert!(world.take(10).await.is_empty());
    world.endpoint.set_enabled(true).await;
    sqlx::query("UPDATE postrider.delivery_queue SET deadline_at = now()")
        .execute(world.database.pool())
        .await
        .expect("the deadline passes");
    assert!(world.take(10).await.is_empty());
}

#[tokio::test]
async fn a_result_counts_only_under_its_lease() {
    let mut world = world().await;
    world.application.publish("order.created", "{}").await;
    let stale = world.take(1).await.remove(0);
    assert_eq!(world.recover(&[world.me], &[], HOUR).await, 1);
    assert_eq!(world.settle(&[delivered(&stale)]).await, [false], "the lease was taken over");
    assert_eq!(world.states().await, ["pending"]);

    let fresh = world.take(1).await.remove(0);
    assert_eq!(fresh.delivery.run.attempt_number, 2);
    assert_eq!(world.settle(&[delivered(&stale), delivered(&fresh)]).await, [false, true]);
    assert!(world.states().await.is_empty());
    let attempts: Vec<(i32, String)> =
        sqlx::query_as("SELECT attempt_number, outcome FROM postrider.attempts ORDER BY attempt_number")
            .fetch_all(world.database.pool())
            .await
            .expect("attempts");
    assert_eq!(attempts, [(1, "interrupted".to_owned()), (2, "delivered".to_owned())]);
}

#[tokio::test]
async fn a_retry_comes_back_when_it_is_due_and_a_release_leaves_no_trace() {
    let mut world = world().await;
    world.application.publish("order.created", "{}").await;
    let claimed = world.take(1).await.remove(0);
    let released = Settlement::released(claimed.tenant_id, &claimed.delivery);
    assert_eq!(world.settle(&[released]).await, [true]);

    let claimed = world.take(1).await.remove(0);
    assert_eq!(claimed.delivery.run.attempt_number, 1, "nothing was sent before");
    assert_eq!(world.settle(&[scheduled(&claimed, HOUR)]).await, [true]);
    assert_eq!(promote::promote(&mut world.lane, Duration::ZERO, 10).await.expect("promotion runs").rows, 0);
    assert_eq!(world.states().await, ["scheduled"]);
    sqlx::query("UPDATE postrider.delivery_queue SET due_at = now()")
        .execute(world.database.pool())
        .await
        .expect("time passes");
    let promoted = promote::promote(&mut world.lane, Duration::ZERO, 10).await.expect("promotion runs");
    assert_eq!((promoted.rows, promoted.endpoints), (1, vec![world.endpoint.id]));
    assert_eq!(world.take(1).await.remove(0).delivery.run.attempt_number, 2);
}

#[tokio::test]
async fn recovery_takes_back_dead_leases_only() {
    let mut world = world().await;
    for _ in 0..3 {
        world.application.publish("order.created", "{}").await;
    }
    let known: Vec<LeaseId> = world.take(2).await.iter().map(|claimed| claimed.delivery.lease_id()).collect();
    assert_eq!(world.recover(&[], &known, Duration::ZERO).await, 0, "all are known and alive");
    assert_eq!(world.recover(&[], &known[..1], HOUR).await, 0, "the unknown one may still be reported");
    let earlier = LeaseId { token: LeaseToken::from_uuid(Uuid::now_v7()), ..known[1] };
    let known = [known[0], earlier];
    assert_eq!(
        world.recover(&[], &known, Duration::ZERO).await,
        1,
        "another claim of the same delivery is known"
    );
    sqlx::query("UPDATE postrider.delivery_queue SET lease_until = now() WHERE state = 'in_flight'")
        .execute(world.database.pool())
        .await
        .expect("the hard limit passes");
    assert_eq!(world.recover(&[], &known, HOUR).await, 1);
    assert_eq!(world.states().await, ["pending"; 3]);
}

#[tokio::test]
async fn a_delivery_that_keeps_killing_its_worker_ends_as_a_dead_letter() {
    let mut world = world().await;
    world.application.publish("order.created", "{}").await;
    for _ in 0..25 {
        assert_eq!(world.take(1).await.len(), 1);
        assert_eq!(world.recover(&[world.me], &[], HOUR).await, 1);
    }
    assert!(world.states().await.is_empty());
    let reason: String = sqlx::query_scalar("SELECT dead_reason FROM postrider.deliveries")
        .fetch_one(world.database.pool())
        .await
        .expect("one dead letter");
    assert_eq!(reason, "attempts_exhausted");
}

#[tokio::test]
async fn held_deliveries_move_in_bounded_batches() {
    let mut world = world().await;
    for _ in 0..5 {
        world.application.publish("order.created", "{}").await;
    }
    assert_eq!(hold::hold(&mut world.lane, 10).await.expect("runs"), 0, "the endpoint is enabled");
    world.endpoint.set_enabled(false).await;
    assert_eq!(hold::hold(&mut world.lane, 3).await.expect("runs"), 3);
    assert_eq!(hold::hold(&mut world.lane, 3).await.expect("runs"), 2);
    assert!(hold::release(&mut world.lane, 3).await.expect("runs").is_empty());
    world.endpoint.set_enabled(true).await;
    assert_eq!(hold::release(&mut world.lane, 3).await.expect("runs").len(), 3);
    assert_eq!(hold::release(&mut world.lane, 3).await.expect("runs").len(), 2);
    assert_eq!(world.states().await, ["pending"; 5]);
}

#[tokio::test]
async fn the_skip_scan_finds_each_waiting_endpoint_once_page_by_page() {
    let mut world = world().await;
    let second = world.tenant.endpoint("audit", "http://127.0.0.1:9/").create().await;
    world.application.sends(&["*"], &second).await;
    for _ in 0..3 {
        world.application.publish("order.created", "{}").await;
    }
    let first = take::find_waiting(&mut world.lane, None, Duration::ZERO, 1).await.expect("a look");
    let rest =
        take::find_waiting(&mut world.lane, first.more_after, Duration::ZERO, 5).await.expect("a look");
    assert_eq!((first.endpoints.len(), rest.endpoints.len(), rest.more_after), (1, 1, None));
    assert_eq!(
        (first.endpoints[0].endpoint_id, rest.endpoints[0].endpoint_id),
        (world.endpoint.id, second.id)
    );
    assert_eq!(world.take_of(second.id, 10).await.len(), 3);
}
