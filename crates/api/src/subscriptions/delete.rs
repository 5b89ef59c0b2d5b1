use http::StatusCode;
use postrider_core::name::Name;
use postrider_store::{
    audit::{Action, Change, Target},
    subscriptions,
};

use crate::{authenticate::Developer, problem::Problem, request::InPath, state::State};

/// Deletes a subscription.
///
/// Deliveries that it made before are still delivered.
#[utoipa::path(
    delete,
    path = "/api/tenants/{tenant}/subscriptions/{subscription}",
    tag = "Subscriptions",
    security(("managementToken" = ["developer"])),
    responses((status = 204, description = "Deleted.")),
)]
pub(crate) async fn delete_subscription(
    Developer(caller): Developer,
    state: State,
    InPath(name): InPath<Name>,
) -> Result<StatusCode, Problem> {
    let mut edit = caller.edit(&state).await?;
    let found = subscriptions::get_by_name(&mut **edit, caller.tenant_id, &name).await?;
    let subscription = found.ok_or_else(Problem::not_found)?;
    subscriptions::delete(&mut edit, caller.tenant_id, &subscription).await?;
    let target = Target::new("subscription", subscription.id, &subscription.name);
    edit.commit(Change::whole(Action::SubscriptionDeleted, target)).await?;
    Ok(StatusCode::NO_CONTENT)
}
