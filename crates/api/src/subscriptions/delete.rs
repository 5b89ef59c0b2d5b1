use http::StatusCode;
use postrider_core::name::Name;
use postrider_store::{edit, subscriptions};

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
    let mut transaction = edit::begin(&state.pool).await?;
    let found = subscriptions::get_by_name(&mut *transaction, caller.tenant_id, &name).await?;
    let subscription = found.ok_or_else(Problem::not_found)?;
    subscriptions::delete(&mut transaction, caller.tenant_id, &subscription).await?;
    transaction.commit().await?;
    Ok(StatusCode::NO_CONTENT)
}
