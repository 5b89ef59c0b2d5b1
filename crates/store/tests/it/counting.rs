//! Tenants that have much open: it is counted apart, while others and they themselves go on, and never too low.

use futures::FutureExt as _;
use postrider_core::{id::TenantId, quota::Quota};
use postrider_store::{
    ingest::Stored,
    lanes::{self, Lane},
    quota::{self, Known, Wanted},
    retry, tenants,
};
use postrider_testkit::scenario::new_event;
use sqlx::{PgConnection, PgPool};

use crate::{
    quotas::{Metered, NONE, open, refused},
    races::wait_for_waiting,
};

/// More than is counted at once.
const MANY: i64 = 6_000;
const QUOTA: u64 = 20_000;

/// Gives a tenant as many deliveries that wait for their next try.
async fn fill(pool: &PgPool, tenant_id: TenantId, count: i64) {
    sqlx::query(
        "INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id,
                signing_key_id, accepted_at, deadline_at, state, due_at, attempt_number, tries)
         SELECT $1, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), now(),
                now(), 'scheduled', now(), 1, 1 FROM generate_series(1, $2)",
    )
    .bind(tenant_id.as_uuid())
    .bind(count)
    .execute(pool)
    .await
    .expect("rows are queued");
}

/// A tenant that got a quota while it had much open, of which nobody knows how much.
async fn full(quota: u64) -> Metered {
    let mut metered = Metered::new(NONE).await;
    fill(metered.world.database.pool(), metered.world.tenant.id, MANY).await;
    metered.world.tenant.limit(&open(quota)).await;
    metered.renew().await;
    metered
}

/// What is to be counted at this moment.
fn wanted(known: &Known) -> Option<Wanted> {
    known.wanted().now_or_never()
}

async fn background(metered: &Metered) -> PgConnection {
    let options = metered.world.database.url().parse().expect("a database URL");
    lanes::connect(&options, Lane::Background).await.expect("a connection")
}

/// As the engine does it.
async fn count(metered: &Metered, connection: &mut PgConnection) {
    let wanted = wanted(&metered.known).expect("somebody asked");
    quota::count(connection, wanted, &metered.known).await.expect("it is counted");
    metered.known.strike_off(wanted.tenant_id);
}

#[tokio::test]
async fn who_has_much_open_is_counted_apart_and_not_believed_before() {
    let mut metered = full(QUOTA).await;
    let tenant_id = metered.world.tenant.id;
    let mut connection = background(&metered).await;
    assert_eq!([metered.one().await, metered.one().await], [Stored::Uncounted; 2]);
    assert_eq!(wanted(&metered.known), Some(Wanted { tenant_id, limit: QUOTA }));
    count(&metered, &mut connection).await;
    assert_eq!(wanted(&metered.known), None, "once");
    let keyed = || new_event("order.created", "{}", Some("one"));
    assert_eq!(metered.store(&[&keyed()]).await, [Stored::New]);
    assert_eq!(metered.written().await.2, Some(MANY + 1));

    // Another process does not know whether somebody stored without counting. What stores nothing passes all the same.
    metered.known = Known::default();
    let stored = metered.store(&[&keyed(), &new_event("order.created", "{}", None)]).await;
    assert!(matches!(stored[..], [Stored::Duplicate { .. }, Stored::Uncounted]), "{stored:?}");
    assert_eq!(metered.written().await.2, Some(MANY + 1), "what others know stays");
}

/// Whatever is counted, it never fits: nobody is told to wait for that.
#[tokio::test]
async fn what_could_never_be_open_is_refused_for_good_while_nobody_knows_what_is() {
    let mut metered = full(QUOTA).await;
    assert_eq!(metered.one().await, Stored::Uncounted);
    let endpoint = metered.world.tenant.endpoint("second", "https://second.example/").create().await;
    metered.world.application.sends(&["order.created"], &endpoint).await;
    for (quota, is_for_good) in [(1, true), (2, false)] {
        metered.world.tenant.limit(&open(quota)).await;
        metered.renew().await;
        let stored = metered.one().await;
        let found = matches!(stored, Stored::OverQuota(excess) if excess.is_for_good());
        assert!(found == is_for_good && (found || stored == Stored::Uncounted), "{quota}: {stored:?}");
    }
}

#[tokio::test]
async fn no_more_is_counted_than_the_quota_has() {
    let quota = u64::try_from(MANY).expect("a number") - 500;
    let mut metered = full(quota).await;
    let mut connection = background(&metered).await;
    assert_eq!(metered.one().await, Stored::Uncounted);
    count(&metered, &mut connection).await;
    assert_eq!(metered.written().await.2, None, "there may be more");
    metered.execute("UPDATE postrider.tenant_usage SET count_seconds = 1000").await;
    assert_eq!(refused(&metered.one().await), Some((Quota::OpenDeliveries, 0, false)));
    assert_eq!(wanted(&metered.known), None, "it was counted a moment ago");
    metered.execute("UPDATE postrider.tenant_usage SET count_seconds = 0").await;
    metered.execute("DELETE FROM postrider.delivery_queue WHERE ctid < '(20,0)'").await;
    assert_eq!(refused(&metered.one().await), Some((Quota::OpenDeliveries, 0, false)), "not yet");
    count(&metered, &mut connection).await;
    assert_eq!(metered.one().await, Stored::New);
}

/// Who sends a dead letter again holds the tenant's row; the count, which does not see it in the queue, waits with its end.
#[tokio::test]
async fn what_is_sent_again_while_it_is_counted_for_the_first_time_is_counted() {
    let mut metered = Metered::new(NONE).await;
    metered.world.application.publish("order.created", "{}").await;
    metered
        .execute(
            "WITH gone AS (DELETE FROM postrider.delivery_queue RETURNING *)
             INSERT INTO postrider.deliveries (tenant_id, delivery_id, event_id, application_id, endpoint_id,
                    signing_key_id, accepted_at, ended_at, outcome, dead_reason, attempt_number)
             SELECT tenant_id, delivery_id, event_id, application_id, endpoint_id, signing_key_id, accepted_at, now(),
                    'dead_lettered', 'rejected', 1 FROM gone",
        )
        .await;
    let pool = metered.world.database.pool().clone();
    let letter: uuid::Uuid = sqlx::query_scalar("SELECT delivery_id FROM postrider.deliveries")
        .fetch_one(&pool)
        .await
        .expect("one dead letter");
    fill(&pool, metered.world.tenant.id, MANY).await;
    metered.world.tenant.limit(&open(QUOTA)).await;
    metered.renew().await;
    assert_eq!(metered.one().await, Stored::Uncounted);

    let mut connection = background(&metered).await;
    let mut again = pool.begin().await.expect("a transaction");
    retry::retry(&mut again, metered.world.tenant.id, letter.into()).await.expect("sent again");
    let committed = async {
        wait_for_waiting(&pool, 1).await;
        again.commit().await.expect("committed");
    };
    tokio::join!(count(&metered, &mut connection), committed);
    assert_eq!(metered.written().await.2, Some(MANY + 1));
    assert_eq!(metered.one().await, Stored::New);
}

#[tokio::test]
async fn a_change_of_the_quotas_voids_a_count_that_runs() {
    let mut metered = full(QUOTA).await;
    assert_eq!(metered.one().await, Stored::Uncounted);
    let pool = metered.world.database.pool().clone();
    let mut connection = background(&metered).await;
    let mut change = pool.begin().await.expect("a transaction");
    tenants::lock_limits(&mut change, metered.world.tenant.id).await.expect("locked");
    let committed = async {
        wait_for_waiting(&pool, 1).await;
        change.commit().await.expect("committed");
    };
    tokio::join!(count(&metered, &mut connection), committed);
    assert_eq!(metered.written().await.2, None);
    assert_eq!(metered.one().await, Stored::Uncounted);
    count(&metered, &mut connection).await;
    assert_eq!(metered.one().await, Stored::New);
}

#[tokio::test]
async fn a_number_that_nears_the_quota_is_lowered_before_it_refuses_anybody() {
    let mut metered = full(QUOTA).await;
    let mut connection = background(&metered).await;
    assert_eq!(metered.one().await, Stored::Uncounted);
    count(&metered, &mut connection).await;
    for (open, is_wanted) in [(15_000, false), (15_001, true)] {
        sqlx::query("UPDATE postrider.tenant_usage SET open_at_most = $1, count_seconds = 0")
            .bind(open)
            .execute(&mut connection)
            .await
            .expect("changed");
        assert_eq!(metered.one().await, Stored::New);
        assert_eq!(wanted(&metered.known).is_some(), is_wanted, "{open}");
    }
    count(&metered, &mut connection).await;
    assert_eq!(metered.written().await.2, Some(MANY + 2));
    metered.execute("UPDATE postrider.tenant_usage SET open_at_most = 20000, count_seconds = 1000").await;
    assert_eq!(refused(&metered.one().await), Some((Quota::OpenDeliveries, 0, false)));
    assert_eq!(wanted(&metered.known), None, "not so soon after the last count");
}
