use postrider_core::name::{EventTypePattern, Name};
use postrider_store::{
    audit::{Action, Change, Target},
    subscriptions::{self, Changes},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Subscription, distinct};
use crate::{
    authenticate::Developer,
    body::{Json, MergePatch},
    change::{names_of_given, not_null},
    problem::Problem,
    request::InPath,
    state::State,
};

/// What to change about a subscription; what is left out stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SubscriptionPatch)]
pub(crate) struct Body {
    /// Whether it makes new deliveries.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(nullable = false)]
    enabled: Option<bool>,
    /// Replaces all event types it names.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(value_type = Vec<String>, required = false, nullable = false, min_items = 1, max_items = 50)]
    event_types: Option<Vec<EventTypePattern>>,
}

/// Changes a subscription.
///
/// The change applies to every event that is accepted after the answer.
#[utoipa::path(
    patch,
    path = "/api/tenants/{tenant}/subscriptions/{subscription}",
    tag = "Subscriptions",
    security(("managementToken" = ["developer"])),
    request_body(
        content((Body = "application/merge-patch+json"), (Body = "application/json")),
        description = "A JSON merge patch (RFC 7396).",
    ),
    responses((status = 200, description = "The subscription as it is now.", body = Subscription)),
)]
pub(crate) async fn update_subscription(
    Developer(caller): Developer,
    state: State,
    InPath(name): InPath<Name>,
    MergePatch(body): MergePatch<Body>,
) -> Result<Json<Subscription>, Problem> {
    let event_types = body.event_types.map(distinct).transpose()?;
    let mut edit = caller.edit(&state).await?;
    let found = subscriptions::get_by_name(&mut **edit, caller.tenant_id, &name).await?;
    let mut subscription = found.ok_or_else(Problem::not_found)?;
    let changes = Changes {
        enabled: body.enabled.filter(|enabled| *enabled != subscription.enabled),
        event_types: event_types.filter(|event_types| *event_types != subscription.event_types),
    };
    let fields = names_of_given([
        ("enabled", changes.enabled.is_some()),
        ("eventTypes", changes.event_types.is_some()),
    ]);
    if !changes.is_empty() {
        subscription = subscriptions::update(&mut edit, caller.tenant_id, &subscription, changes).await?;
        let target = Target::new("subscription", subscription.id, &subscription.name);
        edit.commit(Change { action: Action::SubscriptionChanged, target, fields: &fields }).await?;
    }
    Ok(Json(subscription.into()))
}
