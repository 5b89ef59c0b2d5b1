//! Who is sent first: rows that become visible late, what is published while older work waits, and tenants that share few
//! slots.

use std::time::Duration;

use postrider_core::id::DeliveryId;
use postrider_engine::scout;
use postrider_testkit::{
    answer::{Answer, Gate},
    receiver::Request,
    running::{Options, Running, loopback_http},
    scenario::{Application, Scenario, new_event},
};
use sqlx::PgTransaction;

use super::World;

/// More than any test sends: an endpoint with a rate has no line of claimed deliveries, so each is claimed by itself.
const AMPLE_RATE: (f64, u32) = (1_000_000.0, 1_000);
/// The taker's pause before the first beat.
const FIRST_PAUSE: Duration = Duration::from_millis(300);

/// What is pending has been so for longer than the table leaves it to messages.
const WAITS_LONG: &str =
    "UPDATE postrider.delivery_queue SET pending_since = pending_since - interval '1 min'
                           WHERE state = 'pending'";

/// An endpoint with a backlog that is sent one by one, each answered when the test says so.
struct Backlog {
    world: World,
    application: Application,
    gates: Vec<Gate>,
}

impl Backlog {
    /// Deliveries that wait since so many seconds.
    async fn of(ages_seconds: &[i32]) -> (Self, Vec<DeliveryId>) {
        let world = World::new().await;
        let (per_second, burst) = AMPLE_RATE;
        let (application, _) =
            world.pair_with("orders", |endpoint| endpoint.max_in_flight(1).rate(per_second, burst)).await;
        let mut backlog = Self { world, application, gates: Vec::new() };
        let mut ids = Vec::new();
        for age in ages_seconds {
            let id = backlog.application.publish("order.created", "{}").await.deliveries[0];
            sqlx::query(
                "UPDATE postrider.delivery_queue SET pending_since = now() - make_interval(secs => $2)
                  WHERE delivery_id = $1",
            )
            .bind(id.as_uuid())
            .bind(f64::from(*age))
            .execute(backlog.world.pool())
            .await
            .expect("aged");
            let gate = Gate::default();
            backlog.world.receiver.queue([Answer::ok().after(&gate)]);
            backlog.gates.push(gate);
            ids.push(id);
        }
        (backlog, ids)
    }

    async fn start(&self) -> Running {
        let engine = self.world.start().await;
        self.world.clock.advance(FIRST_PAUSE);
        engine
    }

    /// Moves a delivery to another age, in a transaction that is committed later.
    async fn move_late(&self, id: DeliveryId, age_seconds: f64) -> PgTransaction<'static> {
        let mut transaction = self.world.pool().begin().await.expect("a transaction begins");
        sqlx::query(
            "UPDATE postrider.delivery_queue SET pending_since = now() - make_interval(secs => $2)
              WHERE delivery_id = $1",
        )
        .bind(id.as_uuid())
        .bind(age_seconds)
        .execute(&mut *transaction)
        .await
        .expect("moved");
        transaction
    }
}

fn ids(requests: &[Request]) -> Vec<DeliveryId> {
    requests.iter().map(|request| request.webhook_id().parse().expect("a delivery's id")).collect()
}

/// It became pending before one that was taken, and was committed after that. No look of the scout helps: its clock stands
/// still.
#[tokio::test]
async fn a_row_that_commits_late_is_above_the_low_water_mark() {
    let (backlog, rows) = Backlog::of(&[100, 50, 40, 30]).await;
    let late = backlog.move_late(rows[3], 50.3).await;
    let _engine = backlog.start().await;
    backlog.world.receiver.wait_for(1).await;
    backlog.gates[0].open();
    backlog.world.receiver.wait_for(2).await;
    late.commit().await.expect("committed");
    backlog.gates[1].open();
    let sent = ids(&backlog.world.receiver.wait_for(3).await);
    assert_eq!(sent, [rows[0], rows[1], rows[3]], "it waits longer than the third");
    backlog.gates[2].open();
    assert_eq!(ids(&backlog.world.receiver.wait_for(4).await)[3], rows[2]);
    backlog.gates[3].open();
    backlog.world.wait_until(super::DELIVERED, 4).await;
}

/// It is far below the mark, and the endpoint always has other work: only a look from the very beginning finds it.
#[tokio::test]
async fn a_row_below_the_low_water_mark_is_found_within_a_poll() {
    let (backlog, rows) = Backlog::of(&[100, 50, 40, 39, 38, 37, 36, 35, 34, 33]).await;
    let hidden = *rows.last().expect("ten");
    let late = backlog.move_late(hidden, 300.0).await;
    let _engine = backlog.start().await;
    for count in 1..=2 {
        backlog.world.receiver.wait_for(count).await;
        backlog.gates[count - 1].open();
    }
    backlog.world.receiver.wait_for(3).await;
    late.commit().await.expect("committed");
    for count in 4..rows.len() {
        // A look takes the scout a moment of the real time; each delivery gives it one.
        backlog.world.clock.advance(scout::POLL);
        backlog.gates[count - 2].open();
        // A taker that has missed a beat under load rests on this clock, too.
        backlog.world.pass_until_received(count).await;
    }
    let sent = ids(&backlog.world.receiver.requests());
    assert!(sent.contains(&hidden), "all but one were sent, and it was not the one that waits longest");
    backlog.gates.iter().for_each(Gate::open);
    backlog.world.pass_until(super::DELIVERED, 10).await;
}

#[tokio::test]
async fn what_is_published_while_older_work_waits_is_sent_after_it() {
    let world = World::new().await;
    let (application, _) = world.pair("orders").await;
    let older = application.publish("order.created", "{}").await.deliveries[0];
    world.execute(WAITS_LONG).await;
    // The scout has seen it, and the taker has not.
    let engine = world.start().await;
    let newer = engine.publish(&application, new_event("order.created", "{}", None)).await.expect("accepted");
    world.clock.advance(FIRST_PAUSE);
    let sent = ids(&world.receiver.wait_for(2).await);
    assert_eq!((sent[0], sent[1].event()), (older, newer.event_id));
}

/// One tenant uses all slots and has more to send, the other has one delivery.
#[tokio::test]
async fn a_slot_that_comes_free_goes_to_the_tenant_with_the_fewest_requests() {
    const SLOTS: u16 = 4;
    let world = World::new().await;
    let (per_second, burst) = AMPLE_RATE;
    let (busy, _) =
        world.pair_with("busy", |endpoint| endpoint.max_in_flight(50).rate(per_second, burst)).await;
    let globex = Scenario::new(world.pool().clone()).tenant("globex").await;
    let modest = globex.application("modest").await;
    let endpoint = globex.endpoint("modest", &world.receiver.url("/modest")).rate(per_second, burst);
    modest.sends(&["*"], &endpoint.create().await).await;
    let options = Options { concurrency: SLOTS, ..Options::default() };
    let engine = world.start_with(loopback_http(), options).await;
    // Both are known to be quick.
    for (count, application) in [(1, &busy), (2, &modest)] {
        application.publish("order.created", "{}").await;
        world.execute(WAITS_LONG).await;
        world.pass_until_received(count).await;
        world.pass_until(super::DELIVERED, i64::try_from(count).expect("few")).await;
    }
    let gates: Vec<Gate> = (0..SLOTS).map(|_| Gate::default()).collect();
    world.receiver.queue(gates.iter().map(|gate| Answer::ok().after(gate)));
    for _ in 0..3 * SLOTS {
        busy.publish("order.created", "{}").await;
    }
    world.execute(WAITS_LONG).await;
    world.pass_until_received(2 + usize::from(SLOTS)).await;
    engine.publish(&modest, new_event("order.created", "{}", None)).await.expect("accepted");
    // The taker knows of it, by the hand-off that found no slot or by its message.
    world.database.until_no_message_is_under_way().await;
    gates[0].open();
    let requests = world.receiver.wait_for(3 + usize::from(SLOTS)).await;
    assert_eq!(requests.last().map(Request::target), Some("/modest"));
    gates.iter().for_each(Gate::open);
}
