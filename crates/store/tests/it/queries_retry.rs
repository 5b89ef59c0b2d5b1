//! Retry by hand: which deliveries may go back into the queue, and as what.

use postrider_core::{
    id::DeliveryId,
    queue::{self, Pointer},
};
use postrider_store::{
    audit::{Action, Actor, By, Change, Target},
    deliveries::{self, State, Status},
    edit::{self, Edit},
    endpoints::{self, DisabledReason},
    outbox::Audience,
    retry::{self, Error, Retried},
    signing_keys::NewSigningKey,
};
use time::Duration;

use crate::queries_history::History;

async fn retry_as(
    history: &History,
    tenant: postrider_core::id::TenantId,
    id: DeliveryId,
) -> Result<Retried, Error> {
    let mut transaction = edit::begin(history.pool()).await.expect("a transaction begins");
    let retried = retry::retry(&mut transaction, tenant, id).await?;
    transaction.commit().await?;
    Ok(retried)
}

async fn retry(history: &History, id: DeliveryId) -> Result<Retried, Error> {
    retry_as(history, history.tenant.id, id).await
}

async fn state(history: &History, id: DeliveryId) -> deliveries::Delivery {
    let mut connection = history.pool().acquire().await.expect("a connection");
    let found = deliveries::get(&mut connection, history.tenant.id, id).await;
    found.expect("read").expect("it exists")
}

async fn execute(history: &History, statement: &'static str, id: DeliveryId) {
    sqlx::query(statement).bind(id.as_uuid()).execute(history.pool()).await.expect("executed");
}

#[tokio::test]
async fn only_a_dead_letter_goes_back() {
    let history = History::with_every_state().await;
    for status in Status::ALL {
        let outcome = retry(&history, history.delivery(*status)).await;
        match status {
            Status::DeadLettered => {
                assert!(matches!(outcome, Ok(Retried { ready: Some(_), .. })), "{outcome:?}");
            }
            Status::Pending | Status::Scheduled | Status::InFlight | Status::Held | Status::Delivered => {
                assert!(matches!(outcome, Err(Error::NotDeadLettered)), "{status}: {outcome:?}");
            }
        }
    }
    let unknown = DeliveryId::from_uuid(uuid::Uuid::now_v7());
    assert!(matches!(retry(&history, unknown).await, Err(Error::NotFound)));
}

#[tokio::test]
async fn its_deadline_restarts_and_its_numbering_does_not() {
    let history = History::with_every_state().await;
    let id = history.delivery(Status::DeadLettered);
    let dead = state(&history, id).await;
    retry(&history, id).await.expect("retried");
    let again = state(&history, id).await;
    assert_eq!((again.accepted_at, again.attempts), (dead.accepted_at, dead.attempts));
    let State::Pending { deadline, since } = again.state else { panic!("{again:?}") };
    assert_eq!(deadline - since, Duration::hours(24));
    let tries: i32 = sqlx::query_scalar("SELECT tries FROM postrider.delivery_queue WHERE delivery_id = $1")
        .bind(id.as_uuid())
        .fetch_one(history.pool())
        .await
        .expect("tries");
    assert_eq!(tries, 0);
}

#[tokio::test]
async fn it_is_signed_under_the_current_key() {
    let history = History::with_every_state().await;
    let id = history.delivery(Status::DeadLettered);
    let old = state(&history, id).await;
    let mut transaction = edit::begin(history.pool()).await.expect("a transaction begins");
    let endpoint = endpoints::lock_by_name(&mut transaction, history.tenant.id, &old.endpoint).await;
    let endpoint = endpoint.expect("it exists");
    let key = NewSigningKey {
        id: uuid::Uuid::now_v7().into(),
        algorithm: endpoint.algorithm,
        sealed_secret: b"sealed",
    };
    endpoints::rotate_secret(&mut transaction, history.tenant.id, endpoint.id, key, 0)
        .await
        .expect("rotated");
    transaction.commit().await.expect("commit");

    assert_eq!(state(&history, id).await.signing_key_id, old.signing_key_id);
    retry(&history, id).await.expect("retried");
    assert_eq!(state(&history, id).await.signing_key_id, key.id);
}

#[tokio::test]
async fn it_is_held_while_its_endpoint_is_disabled() {
    let history = History::with_every_state().await;
    let id = history.delivery(Status::DeadLettered);
    let mut transaction = edit::begin(history.pool()).await.expect("a transaction begins");
    let name = state(&history, id).await.endpoint;
    let endpoint =
        endpoints::lock_by_name(&mut transaction, history.tenant.id, &name).await.expect("it exists");
    let reason = Some(DisabledReason::Gone);
    endpoints::set_disabled(&mut transaction, history.tenant.id, endpoint.id, reason)
        .await
        .expect("disabled");
    transaction.commit().await.expect("commit");

    assert_eq!(retry(&history, id).await.expect("retried").ready, None);
    assert_eq!(state(&history, id).await.state.status(), Status::Held);
}

#[tokio::test]
async fn what_cannot_be_sent_again_stays_a_dead_letter() {
    let history = History::with_every_state().await;
    let id = history.delivery(Status::DeadLettered);
    execute(
        &history,
        "UPDATE postrider.deliveries SET dead_reason = 'endpoint_deleted' WHERE delivery_id = $1",
        id,
    )
    .await;
    assert!(matches!(retry(&history, id).await, Err(Error::EndpointDeleted)));
    execute(&history, "UPDATE postrider.deliveries SET dead_reason = 'body_gone' WHERE delivery_id = $1", id)
        .await;
    assert!(matches!(retry(&history, id).await, Err(Error::BodyGone)));
    execute(&history, "UPDATE postrider.deliveries SET dead_reason = 'rejected' WHERE delivery_id = $1", id)
        .await;
    let erase = sqlx::query("DELETE FROM postrider.events WHERE event_id = $1").bind(id.event().as_uuid());
    erase.execute(history.pool()).await.expect("erased");
    assert!(matches!(retry(&history, id).await, Err(Error::BodyGone)));
    let shown = state(&history, id).await;
    assert_eq!((shown.state.status(), shown.event_type), (Status::DeadLettered, None));
}

#[tokio::test]
async fn of_many_who_ask_at_once_one_is_heard() {
    let history = History::with_every_state().await;
    let id = history.delivery(Status::DeadLettered);
    let outcomes = futures::future::join_all((0..8).map(|_| retry(&history, id))).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1, "{outcomes:?}");
    for outcome in outcomes {
        assert!(matches!(outcome, Ok(_) | Err(Error::NotDeadLettered)), "{outcome:?}");
    }
}

#[tokio::test]
async fn another_tenants_dead_letter_is_unknown() {
    let history = History::with_every_state().await;
    let rival = history.scenario().tenant("rival").await.id;
    let id = history.delivery(Status::DeadLettered);
    assert!(matches!(retry_as(&history, rival, id).await, Err(Error::NotFound)));
    assert_eq!(state(&history, id).await.state.status(), Status::DeadLettered);
}

/// A tenant's request may write no messages: the service does, in the request's transaction.
#[tokio::test]
async fn it_and_the_message_that_names_it_are_committed_together() {
    let history = History::empty().await;
    let mut expected = Vec::new();
    for (audience, is_kept) in [(Audience::Broker, false), (Audience::Nobody, true), (Audience::Broker, true)]
    {
        let id = history.orders.publish("order.created", "{}").await.deliveries[0];
        history.bring(id, Status::DeadLettered).await;
        let attempt_number = state(&history, id).await.attempts;
        let by = By { actor: Actor::Process, address: None };
        let mut edit = Edit::of_tenant(history.pool(), history.tenant.id, by).await.expect("it begins");
        let retried = retry::retry(&mut edit, history.tenant.id, id).await.expect("retried");
        let ready = retried.ready.expect("its endpoint is enabled").deliveries;
        let (tenant_id, endpoint_id) = (history.tenant.id, retried.endpoint_id);
        assert_eq!(ready, [Pointer { tenant_id, endpoint_id, delivery_id: id, attempt_number }]);
        if is_kept {
            let change = Change::whole(Action::DeliveryRetried, Target::of_id("delivery", id));
            edit.commit_announcing(change, audience, &ready).await.expect("committed");
        } else {
            drop(edit);
        }
        let status = if is_kept { Status::Pending } else { Status::DeadLettered };
        assert_eq!(state(&history, id).await.state.status(), status);
        match audience {
            Audience::Broker if is_kept => expected.extend(ready),
            Audience::Broker | Audience::Nobody => {}
        }
        let messages: Vec<Vec<u8>> = sqlx::query_scalar("SELECT payload FROM postrider.outbox")
            .fetch_all(history.pool())
            .await
            .expect("the outbox can be read");
        let named = messages.iter().flat_map(|message| queue::read(message).expect("a message"));
        assert_eq!(named.collect::<Vec<_>>(), expected, "{audience:?}");
    }
    let recorded =
        sqlx::query_scalar("SELECT count(*) FROM postrider.audit_log WHERE action = 'delivery.retried'");
    let recorded: i64 = recorded.fetch_one(history.pool()).await.expect("the audit log");
    assert_eq!(recorded, 2);
}
