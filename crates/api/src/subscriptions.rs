//! Subscriptions: which event types of which application go to which endpoint.

mod create;
mod delete;
mod get;
mod list;
mod update;

use postrider_core::name::{EventTypePattern, MAX_EVENT_TYPES_PER_SUBSCRIPTION, Name};
use postrider_store::subscriptions;
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{problem::Problem, state::State};

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(list::list_subscriptions, create::create_subscription))
        .routes(routes!(get::get_subscription, update::update_subscription, delete::delete_subscription))
}

/// Which event types of an application go to an endpoint.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Subscription {
    #[schema(value_type = String, example = "orders-to-warehouse")]
    id: Name,
    #[schema(value_type = String, example = "orders")]
    application_id: Name,
    #[schema(value_type = String, example = "warehouse")]
    endpoint_id: Name,
    #[schema(value_type = Vec<String>, example = json!(["order.*"]))]
    event_types: Vec<EventTypePattern>,
    /// A disabled subscription makes no new deliveries.
    enabled: bool,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

impl From<subscriptions::Subscription> for Subscription {
    fn from(subscription: subscriptions::Subscription) -> Self {
        Self {
            id: subscription.name,
            application_id: subscription.application,
            endpoint_id: subscription.endpoint,
            event_types: subscription.event_types,
            enabled: subscription.enabled,
            created_at: subscription.created_at,
            updated_at: subscription.updated_at,
        }
    }
}

/// Checks how many event types a subscription names, and drops repeated ones.
fn distinct(event_types: Vec<EventTypePattern>) -> Result<Vec<EventTypePattern>, Problem> {
    if !(1..=MAX_EVENT_TYPES_PER_SUBSCRIPTION).contains(&event_types.len()) {
        return Err(Problem::invalid_field(
            "eventTypes",
            format!("a subscription names 1 to {MAX_EVENT_TYPES_PER_SUBSCRIPTION} event types"),
        ));
    }
    let mut distinct = Vec::with_capacity(event_types.len());
    for pattern in event_types {
        if !distinct.contains(&pattern) {
            distinct.push(pattern);
        }
    }
    Ok(distinct)
}
