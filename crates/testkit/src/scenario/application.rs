//! Applications of a scenario: who subscribes to them, and what they publish.

use std::{num::NonZeroU16, sync::Arc, time::Duration};

use bytes::Bytes;
use postrider_core::{
    event::{Fingerprint, KeySpace},
    id::{ApplicationId, DeliveryId, EventId, InstanceId, SubscriptionId},
    name::{EventType, EventTypePattern, IdempotencyKey, Name},
    plan,
    token::{Kind, Token},
};
use postrider_store::{
    applications, edit,
    ingest::{self, Item, Lease, NewEvent, Onward, Planned, Stored, Target},
    routing::{Cache, Routing},
    subscriptions,
};
use uuid::Uuid;

use super::{Endpoint, Tenant, fresh_token, parsed, peppers};

const CONTENT_TYPE: &str = "application/json";

/// An application, and the token its owner was shown.
#[derive(Debug, Clone)]
pub struct Application {
    tenant: Tenant,
    pub id: ApplicationId,
    pub name: Name,
    pub publish_token: Token,
}

/// A stored event and its deliveries, all pending.
#[derive(Debug, Clone)]
pub struct Published {
    pub event_id: EventId,
    pub deliveries: Vec<DeliveryId>,
}

impl Application {
    pub(super) async fn create(tenant: &Tenant, name: &str) -> Self {
        let name = parsed(name);
        let id = ApplicationId::from_uuid(Uuid::now_v7());
        let publish_token = fresh_token(Kind::Publish);
        let token_hash = &peppers().hashes(&publish_token);
        let new = applications::NewApplication { id, name: &name, token_hash };
        let mut transaction = edit::begin(&tenant.pool).await.expect("a transaction begins");
        applications::create(&mut transaction, tenant.id, new).await.expect("the application's name is free");
        transaction.commit().await.expect("the application is committed");
        Self { tenant: tenant.clone(), id, name, publish_token }
    }

    /// Subscribes an endpoint to event types such as `order.*`.
    pub async fn sends(&self, event_types: &[&str], endpoint: &Endpoint) {
        let event_types: Vec<EventTypePattern> = event_types.iter().map(|text| parsed(text)).collect();
        let id = SubscriptionId::from_uuid(Uuid::now_v7());
        let new = subscriptions::NewSubscription {
            id,
            // One endpoint may have several subscriptions, so the name is the id.
            name: &parsed(&id.as_uuid().simple().to_string()),
            application_id: self.id,
            endpoint_id: endpoint.id,
            event_types: &event_types,
        };
        let mut transaction = edit::begin(&self.tenant.pool).await.expect("a transaction begins");
        subscriptions::create(&mut transaction, self.tenant.id, new).await.expect("the subscription is new");
        transaction.commit().await.expect("the subscription is committed");
    }

    /// What ingest knows about the application, read anew.
    pub async fn routing(&self) -> Arc<Routing> {
        let cache = Cache::new(self.tenant.pool.clone());
        let found = cache.by_token(&peppers().hash(&self.publish_token), || None).await;
        found.expect("the application can be read").expect("the application exists")
    }

    /// Stores an event as ingest does, with every delivery pending, past the API and the engine.
    pub async fn publish(&self, event_type: &str, body: impl Into<Bytes>) -> Published {
        let routing = self.routing().await;
        let event = new_event(event_type, body, None);
        let deliveries: Vec<Planned> = (1..)
            .zip(plan::fan_out(&routing.rules, &event.event_type))
            .map(|(place, endpoint_id)| {
                let endpoint = &routing.endpoints[&endpoint_id];
                Planned {
                    delivery_id: event.event_id.delivery(NonZeroU16::new(place).expect("places start at 1")),
                    endpoint_id,
                    signing_key_id: endpoint.signing_key_id,
                    max_age: endpoint.retry.max_age(),
                    lease: None,
                }
            })
            .collect();
        let published = Published {
            event_id: event.event_id,
            deliveries: deliveries.iter().map(|planned| planned.delivery_id).collect(),
        };
        let item = Item { routing: &routing, event: &event, deliveries: &deliveries };
        // Nothing is born claimed, so nobody owns the batch.
        let lease = Lease { owner: InstanceId::from_uuid(Uuid::nil()), hard_limit: Duration::ZERO };
        let mut connection = self.tenant.pool.acquire().await.expect("a connection");
        let batch = ingest::insert(&mut connection, &[item], Onward::Table(lease))
            .await
            .expect("the event is stored");
        assert_eq!(batch.stored, [Stored::New], "the plan was current");
        published
    }
}

/// A notification as the API hands it to the engine.
pub fn new_notification(endpoint: &Endpoint, content_type: &str, body: impl Into<Bytes>) -> NewEvent {
    let body = body.into();
    NewEvent {
        fingerprint: Fingerprint::of_notification(endpoint.id, content_type, &body),
        content_type: content_type.to_owned(),
        target: Target::Endpoint(endpoint.id),
        ..new_event("postrider.notification", body, None)
    }
}

/// A JSON event as the API hands it to the engine.
pub fn new_event(event_type: &str, body: impl Into<Bytes>, key: Option<&str>) -> NewEvent {
    let event_type: EventType = parsed(event_type);
    let body = body.into();
    NewEvent {
        event_id: EventId::from_fresh(Uuid::now_v7()),
        key: key.map(|key| (KeySpace::Events, parsed::<IdempotencyKey>(key))),
        fingerprint: Fingerprint::of(&event_type, CONTENT_TYPE, &body),
        event_type,
        content_type: CONTENT_TYPE.to_owned(),
        body,
        trace_id: Uuid::new_v4().into_bytes(),
        target: Target::Plan,
    }
}
