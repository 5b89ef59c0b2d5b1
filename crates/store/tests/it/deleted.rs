//! What becomes of a deleted endpoint's open deliveries and secrets.

use postrider_core::id::{EndpointId, SigningKeyId};
use postrider_store::{
    deliveries::Status,
    discard,
    lanes::{self, Lane},
    signing_keys,
};
use sqlx::{Connection as _, PgConnection};

use crate::queries_history::History;

/// Walks through what the tenant has open, so many at a time. Tells how many steps that took, and what they ended; nothing
/// where no endpoint is left to be drained.
async fn walk(connection: &mut PgConnection, limit: u16) -> Option<(usize, u64)> {
    let mut walk = discard::begin(connection, None).await.expect("a look")?;
    let mut ended = 0;
    for steps in 1.. {
        let step = discard::step(connection, &mut walk, limit).await.expect("a step");
        ended += step.ended;
        if step.is_last {
            return Some((steps, ended));
        }
    }
    None
}

async fn lane(history: &History) -> PgConnection {
    let options = history.pool().connect_options();
    lanes::connect(&options, Lane::Work).await.expect("a connection")
}

/// Those of all its keys, and of no other endpoint's, once nothing is left to be sent to it.
#[tokio::test]
async fn a_deleted_endpoint_gives_up_its_signing_secrets_with_its_last_open_delivery() {
    let mut history = History::empty().await;
    let leased = history.orders.publish("order.created", "{}").await;
    for id in &leased.deliveries {
        history.bring(*id, Status::InFlight).await;
    }
    history.warehouse.rotate(60).await;
    history.warehouse.delete().await;
    let (warehouse, tenant_id) = (history.warehouse.id, history.tenant.id);
    let mut connection = lane(&history).await;
    let keys = "SELECT signing_key_id FROM postrider.signing_keys WHERE (endpoint_id = $1) = $2";
    let with_secret = async |of_warehouse: bool| {
        let ids: Vec<uuid::Uuid> = sqlx::query_scalar(keys)
            .bind(warehouse.as_uuid())
            .bind(of_warehouse)
            .fetch_all(history.pool())
            .await
            .expect("keys");
        let mut count = 0;
        for id in ids {
            let key = signing_keys::get(history.pool(), tenant_id, SigningKeyId::from_uuid(id)).await;
            count += usize::from(key.expect("read").is_some());
        }
        count
    };

    assert_eq!(walk(&mut connection, 100).await, Some((1, 0)), "a request is under way");
    assert_eq!((with_secret(true).await, with_secret(false).await), (2, 1));
    sqlx::query("DELETE FROM postrider.delivery_queue").execute(history.pool()).await.expect("it ends");
    assert_eq!(walk(&mut connection, 100).await, Some((1, 0)), "there is nothing to end");
    assert_eq!((with_secret(true).await, with_secret(false).await), (0, 1));
    assert_eq!(walk(&mut connection, 100).await, None, "once");
    connection.close().await.expect("closed");
}

/// Rows of one tenant: of an endpoint and of another one, and their state.
async fn queue(history: &History, endpoint_id: EndpointId, state: &str, count: i64) {
    sqlx::query(
        "INSERT INTO postrider.delivery_queue (tenant_id, delivery_id, event_id, application_id, endpoint_id,
                signing_key_id, accepted_at, deadline_at, state, due_at, pending_since, attempt_number, tries,
                lease_owner, lease_token, leased_at, lease_until)
         SELECT $1, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), $2, gen_random_uuid(), now(), now(), $3,
                CASE $3 WHEN 'scheduled' THEN now() END, CASE $3 WHEN 'pending' THEN now() END, 1, 1,
                CASE $3 WHEN 'in_flight' THEN $1 END, CASE $3 WHEN 'in_flight' THEN $1 END,
                CASE $3 WHEN 'in_flight' THEN now() END, CASE $3 WHEN 'in_flight' THEN now() END
           FROM generate_series(1, $4)",
    )
    .bind(history.tenant.id.as_uuid())
    .bind(endpoint_id.as_uuid())
    .bind(state)
    .bind(count)
    .execute(history.pool())
    .await
    .expect("rows are queued");
}

async fn open(history: &History, endpoint_id: EndpointId) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM postrider.delivery_queue WHERE endpoint_id = $1")
        .bind(endpoint_id.as_uuid())
        .fetch_one(history.pool())
        .await
        .expect("a count")
}

/// However many others the tenant has open, a step looks at so many rows and no more, and what is locked or under way is
/// left to the next walk.
#[tokio::test]
async fn a_walk_ends_what_waits_step_by_step_and_comes_again_for_what_was_busy() {
    let history = History::empty().await;
    let crm = history.tenant.endpoint("crm", "https://example.net/").create().await.id;
    let warehouse = history.warehouse.id;
    for state in ["pending", "scheduled", "held"] {
        queue(&history, warehouse, state, 7).await;
        queue(&history, crm, state, 9).await;
    }
    queue(&history, warehouse, "in_flight", 1).await;
    history.warehouse.delete().await;
    let mut connection = lane(&history).await;
    let mut busy = history.pool().begin().await.expect("a transaction");
    let lock =
        "SELECT FROM postrider.delivery_queue WHERE endpoint_id = $1 AND state = 'held' LIMIT 1 FOR UPDATE";
    sqlx::query(lock).bind(warehouse.as_uuid()).execute(&mut *busy).await.expect("locked");

    assert_eq!(walk(&mut connection, 10).await, Some((5, 20)), "49 rows, 10 at a time");
    busy.rollback().await.expect("let go");
    assert_eq!((open(&history, warehouse).await, open(&history, crm).await), (2, 27));
    assert_eq!(walk(&mut connection, 29).await, Some((2, 1)), "a full step may not be the last");
    assert_eq!(walk(&mut connection, 29).await, Some((1, 0)), "what is under way is left to its owner");
    sqlx::query(
        "UPDATE postrider.delivery_queue SET state = 'scheduled', due_at = now(), lease_owner = NULL,
                        lease_token = NULL, leased_at = NULL, lease_until = NULL WHERE state = 'in_flight'",
    )
    .execute(history.pool())
    .await
    .expect("it comes back");
    assert_eq!(walk(&mut connection, 29).await, Some((1, 1)));
    assert_eq!(walk(&mut connection, 29).await, None, "it is drained");
    assert_eq!((open(&history, warehouse).await, open(&history, crm).await), (0, 27));
    connection.close().await.expect("closed");
}
