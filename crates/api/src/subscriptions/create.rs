use http::StatusCode;
use postrider_core::{
    id::SubscriptionId,
    name::{EventTypePattern, Name},
    problem::Code,
};
use postrider_store::{
    applications,
    audit::{Action, Change, Target},
    endpoints,
    subscriptions::{self, NewSubscription},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Subscription, distinct};
use crate::{authenticate::Developer, body::Json, problem::Problem, state::State};

/// A subscription to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = NewSubscription)]
pub(crate) struct Body {
    /// The subscription's name: lower-case letters, digits, `-` and `_`.
    #[schema(value_type = String, example = "orders-to-warehouse", min_length = 1, max_length = 64)]
    id: Name,
    #[schema(value_type = String, example = "orders")]
    application_id: Name,
    #[schema(value_type = String, example = "warehouse")]
    endpoint_id: Name,
    /// Exact types such as `order.created`, prefixes such as `order.*`, or `*`.
    #[schema(value_type = Vec<String>, example = json!(["order.*"]), min_items = 1, max_items = 50)]
    event_types: Vec<EventTypePattern>,
}

/// Creates a subscription.
///
/// It applies to every event that is accepted after the answer.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/subscriptions",
    tag = "Subscriptions",
    security(("managementToken" = ["developer"])),
    request_body = Body,
    responses(
        (status = 201, description = "Created.", body = Subscription),
        (status = 404, description = "`not_found`: the tenant has no such application or endpoint."),
        (status = 409, description = "`name_taken`: the tenant has a subscription of this id. \
            `limit_reached`: the application has 5,000 subscriptions."),
    ),
)]
pub(crate) async fn create_subscription(
    Developer(caller): Developer,
    state: State,
    Json(body): Json<Body>,
) -> Result<(StatusCode, Json<Subscription>), Problem> {
    let event_types = distinct(body.event_types)?;
    let mut edit = caller.edit(&state).await?;
    let application = applications::get_by_name(&mut **edit, caller.tenant_id, &body.application_id).await?;
    let endpoint = endpoints::get_by_name(&mut **edit, caller.tenant_id, &body.endpoint_id).await?;
    let subscription = NewSubscription {
        id: SubscriptionId::from_uuid(state.fresh_uuid()),
        name: &body.id,
        application_id: application.ok_or_else(|| unknown("applicationId", "application"))?.id,
        endpoint_id: endpoint.ok_or_else(|| unknown("endpointId", "endpoint"))?.id,
        event_types: &event_types,
    };
    let created = subscriptions::create(&mut edit, caller.tenant_id, subscription).await?;
    let target = Target::new("subscription", created.id, &created.name);
    let fields = &["id", "applicationId", "endpointId", "eventTypes"];
    edit.commit(Change { action: Action::SubscriptionCreated, target, fields }).await?;
    Ok((StatusCode::CREATED, Json(created.into())))
}

fn unknown(field: &str, what: &str) -> Problem {
    Problem::new(Code::NotFound, format!("`{field}`: this tenant has no such {what}. Create it first."))
        .with_field(field, format!("this tenant has no such {what}"))
}
