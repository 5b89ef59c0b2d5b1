//! What tenants with quotas may store, batch by batch, and what is written down of it.

use std::{sync::Arc, time::Duration};

use postrider_core::quota::{Excess, Quota, Settings};
use postrider_store::{
    ingest::{NewEvent, Stored},
    quota::Known,
    retry,
    routing::{Cache, Routing},
    tenants,
};
use postrider_testkit::scenario::{new_event, peppers};
use sqlx::{AssertSqlSafe, PgConnection, PgTransaction, pool::PoolConnection};

use crate::{
    hot_path::{World, delivered, scheduled, world},
    races::wait_for_waiting,
};

/// A world whose tenant has these quotas, and what one process knows of it.
pub(crate) struct Metered {
    pub(crate) world: World,
    pub(crate) connection: PoolConnection<sqlx::Postgres>,
    pub(crate) known: Known,
    routing: Arc<Routing>,
}

impl Metered {
    pub(crate) async fn new(limits: Settings) -> Self {
        let world = world().await;
        world.tenant.limit(&limits).await;
        let connection = world.database.pool().acquire().await.expect("a connection");
        let routing = world.application.routing().await;
        Self { world, connection, known: Known::default(), routing }
    }

    pub(crate) async fn store(&mut self, events: &[&NewEvent]) -> Vec<Stored> {
        self.world.store_metered(&mut self.connection, &self.routing, &self.known, events).await
    }

    /// Reads the plan again.
    pub(crate) async fn renew(&mut self) {
        self.routing = self.world.application.routing().await;
    }

    /// Stores one event without a key.
    pub(crate) async fn one(&mut self) -> Stored {
        self.store(&[&new_event("order.created", "{}", None)]).await.remove(0)
    }

    pub(crate) async fn execute(&mut self, statement: &str) {
        let connection: &mut PgConnection = &mut self.connection;
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await.expect("the statement runs");
    }

    /// Begins to send the only dead letter again.
    async fn retry(&self) -> PgTransaction<'static> {
        let pool = self.world.database.pool();
        let id: uuid::Uuid = sqlx::query_scalar("SELECT delivery_id FROM postrider.deliveries")
            .fetch_one(pool)
            .await
            .expect("one dead letter");
        let mut transaction = pool.begin().await.expect("a transaction");
        retry::retry(&mut transaction, self.world.tenant.id, id.into()).await.expect("sent again");
        transaction
    }

    /// Events and bytes of the hour, and deliveries that may be open, as they are written down.
    pub(crate) async fn written(&mut self) -> (i64, i64, Option<i64>) {
        let connection: &mut PgConnection = &mut self.connection;
        sqlx::query_as(
            "SELECT coalesce((SELECT sum(n) FROM unnest(events) n), 0)::bigint,
                    coalesce((SELECT sum(n) FROM unnest(bytes) n), 0)::bigint, open_at_most
               FROM postrider.tenant_usage",
        )
        .fetch_one(connection)
        .await
        .expect("one row")
    }
}

/// All open deliveries become dead letters.
const DEAD: &str = "WITH gone AS (DELETE FROM postrider.delivery_queue RETURNING *)
    INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id,
           signing_key_id, accepted_at, ended_at, outcome, dead_reason, attempt_number)
    SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, now(),
           'dead_lettered', 'rejected', 1 FROM gone";
/// Whoever does not wait for a lock is done after this time.
const SOON: Duration = Duration::from_millis(500);

pub(crate) const NONE: Settings =
    Settings { rate: None, burst: None, hourly_events: None, hourly_bytes: None, open_deliveries: None };

fn events(limit: u64) -> Settings {
    Settings { hourly_events: Some(limit), ..NONE }
}

pub(crate) fn open(limit: u64) -> Settings {
    Settings { open_deliveries: Some(limit), ..NONE }
}

pub(crate) fn refused(stored: &Stored) -> Option<(Quota, u64, bool)> {
    match stored {
        Stored::OverQuota(Excess { quota, left, retry_after, .. }) => {
            Some((*quota, *left, retry_after.is_some()))
        }
        _ => None,
    }
}

#[tokio::test]
async fn a_batch_is_stored_up_to_the_quota_and_what_stores_nothing_is_never_over_it() {
    let mut metered = Metered::new(events(3)).await;
    let first = new_event("order.created", "{}", Some("one"));
    let again = new_event("order.created", "{}", Some("one"));
    let clash = new_event("order.created", "{ }", Some("one"));
    let other = new_event("order.created", "{}", Some("two"));
    let third = new_event("order.created", "{}", None);
    let late = new_event("order.created", "{}", Some("late"));
    let duplicate = Stored::Duplicate { event_id: first.event_id, deliveries: 1 };
    let conflict = Stored::Conflict { event_id: first.event_id };

    assert_eq!(metered.store(&[&first, &other]).await, [Stored::New; 2]);
    let stored = metered.store(&[&again, &late, &third, &clash, &first]).await;
    assert_eq!(stored[..2], [duplicate, Stored::New]);
    assert_eq!(refused(&stored[2]), Some((Quota::HourlyEvents, 0, true)));
    assert_eq!(stored[3..], [conflict, duplicate]);
    assert_eq!(metered.world.states().await.len(), 3);
    assert_eq!(metered.written().await, (3, 6, None), "nobody counted what no quota asks for");

    // The key of what was refused is free.
    metered.execute("UPDATE postrider.tenant_usage SET minutes = '{}', events = '{}', bytes = '{}'").await;
    assert_eq!(metered.store(&[&third]).await, [Stored::New]);
}

#[tokio::test]
async fn two_of_a_key_in_one_batch_count_once() {
    let mut metered = Metered::new(events(2)).await;
    let twins = [1, 2, 3].map(|_| new_event("order.created", "{}", Some("twin")));
    let last = new_event("order.created", "{}", None);
    let stored = metered.store(&[&twins[0], &twins[1], &twins[2], &last]).await;
    let duplicate = Stored::Duplicate { event_id: twins[0].event_id, deliveries: 1 };
    assert_eq!(stored, [Stored::New, duplicate, duplicate, Stored::New]);
    assert_eq!(metered.written().await.0, 2);
}

#[tokio::test]
async fn an_hour_later_there_is_room_again() {
    let mut metered = Metered::new(Settings { hourly_bytes: Some(5), ..NONE }).await;
    assert_eq!([metered.one().await, metered.one().await], [Stored::New; 2]);
    assert_eq!(refused(&metered.one().await), Some((Quota::HourlyBytes, 1, true)));
    metered.execute("UPDATE postrider.tenant_usage SET minutes = ARRAY[minutes[1] - 60]").await;
    assert_eq!(
        refused(&metered.one().await),
        Some((Quota::HourlyBytes, 1, true)),
        "sixty minutes and the running one"
    );
    metered.execute("UPDATE postrider.tenant_usage SET minutes = ARRAY[minutes[1] - 2]").await;
    assert_eq!(metered.one().await, Stored::New);
    assert_eq!(metered.written().await.1, 2, "what is past is forgotten");
    let large = new_event("order.created", "[1, 2]", None);
    assert_eq!(refused(&metered.store(&[&large]).await[0]), Some((Quota::HourlyBytes, 3, false)));
}

#[tokio::test]
async fn open_deliveries_are_counted_when_the_number_would_refuse() {
    let mut metered = Metered::new(open(2)).await;
    assert_eq!([metered.one().await, metered.one().await], [Stored::New; 2]);
    // However long a count may have taken: this one comes too early.
    let slow = "UPDATE postrider.tenant_usage SET counted_at = now(), count_seconds = 1000";
    let quick = "UPDATE postrider.tenant_usage SET count_seconds = 0";
    let full = Some((Quota::OpenDeliveries, 0, false));
    let claimed = metered.world.take(1).await;
    metered.world.settle(&[delivered(&claimed[0])]).await;
    metered.execute(slow).await;
    assert_eq!(refused(&metered.one().await), full, "nobody has counted");
    metered.execute(quick).await;
    assert_eq!(metered.one().await, Stored::New);

    let claimed = metered.world.take(1).await;
    metered.world.settle(&[scheduled(&claimed[0], Duration::from_secs(60))]).await;
    metered.execute(quick).await;
    assert_eq!(refused(&metered.one().await), full, "what waits for its retry is open");
    metered.world.endpoint.set_enabled(false).await;
    assert!(matches!(metered.one().await, Stored::Stale), "whose quotas may be old is not refused");
    metered.routing = metered.world.application.routing().await;
    assert_eq!(metered.one().await, Stored::New, "an event that nobody gets opens nothing");
    assert_eq!(metered.world.states().await.len(), 2);
}

/// No matter how many are open, so nobody counts them for it.
#[tokio::test]
async fn what_fans_out_to_more_than_may_be_open_is_refused_for_good() {
    let mut metered = Metered::new(open(1)).await;
    let endpoint = metered.world.tenant.endpoint("second", "https://second.example/").create().await;
    metered.world.application.sends(&["order.created"], &endpoint).await;
    metered.renew().await;
    let for_good = |stored: &Stored| matches!(stored, Stored::OverQuota(excess) if excess.is_for_good());
    let refused = metered.one().await;
    assert!(for_good(&refused), "{refused:?}");
    metered.execute("UPDATE postrider.tenant_usage SET open_at_most = 7, count_seconds = 0").await;
    let refused = metered.one().await;
    assert!(for_good(&refused), "{refused:?}");
    assert_eq!(metered.written().await, (0, 0, Some(7)));
    assert_eq!(metered.world.states().await.len(), 0);

    metered.world.tenant.limit(&open(2)).await;
    metered.renew().await;
    assert_eq!(metered.one().await, Stored::New);
    let refused = metered.one().await;
    assert!(matches!(refused, Stored::OverQuota(excess) if !excess.is_for_good()), "{refused:?}");
}

#[tokio::test]
async fn what_was_opened_while_nobody_counted_is_counted_first() {
    let mut metered = Metered::new(NONE).await;
    for _ in 0..3 {
        metered.world.application.publish("order.created", "{}").await;
    }
    metered.world.tenant.limit(&open(4)).await;
    metered.routing = metered.world.application.routing().await;
    assert_eq!(metered.one().await, Stored::New);
    assert_eq!(metered.written().await.2, Some(4));
    assert_eq!(refused(&metered.one().await), Some((Quota::OpenDeliveries, 0, false)));

    // Another process had other defaults, and stored without counting; so this one begins by doing so.
    metered
        .execute(
            "UPDATE postrider.tenant_usage SET open_at_most = 0, counted_at = now(), count_seconds = 1000",
        )
        .await;
    metered.known = Known::default();
    assert_eq!(refused(&metered.one().await), Some((Quota::OpenDeliveries, 0, false)));
}

/// What was counted in a transaction that came to nothing is not written down, so it has to be counted again.
#[tokio::test]
async fn a_count_that_was_not_committed_is_made_again() {
    let mut metered = Metered::new(NONE).await;
    for _ in 0..3 {
        metered.world.application.publish("order.created", "{}").await;
    }
    metered.world.tenant.limit(&open(3)).await;
    metered.routing = metered.world.application.routing().await;
    metered.execute("UPDATE postrider.tenant_usage SET open_at_most = 0").await;
    metered
        .execute("ALTER TABLE postrider.tenant_usage ADD CONSTRAINT no CHECK (open_at_most IS NOT NULL)")
        .await;
    let event = new_event("order.created", "{}", None);
    let batch = [&event];
    let failed =
        metered.world.try_store_metered(&mut metered.connection, &metered.routing, &metered.known, &batch);
    assert!(failed.await.is_err(), "a full count is not written down");
    metered.execute("ALTER TABLE postrider.tenant_usage DROP CONSTRAINT no").await;
    assert_eq!(refused(&metered.one().await), Some((Quota::OpenDeliveries, 0, false)));
}

#[tokio::test]
async fn what_is_sent_again_by_hand_is_open_and_is_not_refused() {
    let mut metered = Metered::new(open(1)).await;
    assert_eq!(metered.one().await, Stored::New);
    metered.execute(DEAD).await;
    metered.execute("UPDATE postrider.tenant_usage SET count_seconds = 0").await;
    assert_eq!(metered.one().await, Stored::New);
    let transaction = metered.retry().await;
    transaction.commit().await.expect("committed");
    assert_eq!(metered.written().await.2, Some(2));
    assert_eq!(metered.world.states().await.len(), 2);
    assert!(refused(&metered.one().await).is_some());
}

/// A tenant that never had quotas, and its only dead letter.
async fn never_counted() -> Metered {
    let mut metered = Metered::new(NONE).await;
    assert_eq!(metered.one().await, Stored::New);
    metered.execute(DEAD).await;
    metered.execute("DELETE FROM postrider.tenant_usage").await;
    metered
}

/// Nobody counts for a tenant without quotas, so a letter that comes back is written down nowhere. Whoever begins to count
/// waits for it.
#[tokio::test]
async fn what_comes_back_before_counting_begins_is_counted() {
    for is_default in [false, true] {
        let mut metered = never_counted().await;
        let pool = metered.world.database.pool().clone();
        let retrying = metered.retry().await;
        let storing = async {
            if is_default {
                let hash = peppers().hash(&metered.world.application.publish_token);
                let cache = Cache::with_defaults(pool.clone(), open(2));
                let found = cache.by_token(&hash, || None).await.expect("it can be read");
                metered.routing = found.expect("the application exists");
            } else {
                metered.world.tenant.limit(&open(2)).await;
                metered.routing = metered.world.application.routing().await;
            }
            metered.one().await
        };
        let (stored, ()) = tokio::join!(storing, async {
            let _ = tokio::time::timeout(SOON, wait_for_waiting(&pool, 1)).await;
            retrying.commit().await.expect("committed");
        });
        assert_eq!(stored, Stored::New);
        assert_eq!(metered.world.states().await.len(), 2);
        assert_eq!(metered.written().await.2, Some(2), "{is_default}");
    }
}

/// The other way round: the first quotas are being set while a letter comes back, and events are stored before it has.
#[tokio::test]
async fn what_comes_back_while_quotas_are_being_set_is_counted() {
    let mut metered = never_counted().await;
    let pool = metered.world.database.pool().clone();
    let mut setting = pool.begin().await.expect("a transaction");
    let tenant_id = metered.world.tenant.id;
    tenants::lock_limits(&mut setting, tenant_id).await.expect("the tenant is locked");
    tenants::set_limits(&mut setting, tenant_id, &open(2), false).await.expect("the tenant exists");
    let (retrying, ()) = tokio::join!(metered.retry(), async {
        let _ = tokio::time::timeout(SOON, wait_for_waiting(&pool, 1)).await;
        setting.commit().await.expect("committed");
    });
    metered.routing = metered.world.application.routing().await;
    let (stored, ()) = tokio::join!(metered.one(), async {
        let _ = tokio::time::timeout(SOON, wait_for_waiting(&pool, 1)).await;
        retrying.commit().await.expect("committed");
    });
    assert_eq!(stored, Stored::New);
    assert_eq!(metered.written().await.2, Some(2));
}

#[tokio::test]
async fn raised_quotas_are_found_by_whoever_would_be_refused() {
    let mut metered = Metered::new(events(1)).await;
    assert_eq!(metered.one().await, Stored::New);
    assert!(refused(&metered.one().await).is_some());
    metered.world.tenant.limit(&events(2)).await;
    assert_eq!(metered.one().await, Stored::Stale, "the plan in memory is out of date");
    metered.routing = metered.world.application.routing().await;
    assert_eq!(metered.one().await, Stored::New);
    assert!(refused(&metered.one().await).is_some());
}

#[tokio::test]
async fn defaults_hold_for_tenants_without_limits_of_their_own() {
    let world = world().await;
    let hash = peppers().hash(&world.application.publish_token);
    let limits = async |defaults: Settings| {
        let cache = Cache::with_defaults(world.database.pool().clone(), defaults);
        cache.by_token(&hash, || None).await.expect("it can be read").expect("the application exists").limits
    };
    let defaults = Settings { rate: Some(5.0), hourly_events: Some(7), open_deliveries: Some(9), ..NONE };
    assert_eq!(limits(NONE).await, NONE.over(&NONE));
    assert_eq!(limits(defaults).await, NONE.over(&defaults));
    let own = Settings {
        rate: Some(0.0),
        burst: Some(3),
        hourly_events: Some(0),
        hourly_bytes: Some(1),
        open_deliveries: None,
    };
    world.tenant.limit(&own).await;
    let found = limits(defaults).await;
    assert_eq!(found, own.over(&defaults));
    assert_eq!((found.rate, found.quotas.hourly_events, found.quotas.open_deliveries), (None, None, Some(9)));
}
