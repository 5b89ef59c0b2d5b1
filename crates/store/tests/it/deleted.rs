//! What becomes of a deleted endpoint's secrets.

use postrider_core::id::SigningKeyId;
use postrider_store::{deliveries::Status, discard, signing_keys};

use crate::queries_history::History;

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
    let mut connection = history.pool().acquire().await.expect("a connection");
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

    assert!(!discard::drain(&mut connection, warehouse).await.expect("a look"), "a request is under way");
    assert_eq!((with_secret(true).await, with_secret(false).await), (2, 1));
    sqlx::query("DELETE FROM postrider.delivery_queue").execute(history.pool()).await.expect("it ends");
    assert!(discard::drain(&mut connection, warehouse).await.expect("drained"));
    assert_eq!((with_secret(true).await, with_secret(false).await), (0, 1));
    assert!(!discard::drain(&mut connection, warehouse).await.expect("a look"), "once");
}
