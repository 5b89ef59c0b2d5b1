use postrider_core::name::Name;
use postrider_store::subscriptions;

use super::Subscription;
use crate::{authenticate::Viewer, body::Json, problem::Problem, request::InPath, state::State};

/// Shows a subscription.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/subscriptions/{subscription}",
    tag = "Subscriptions",
    security(("managementToken" = ["viewer"])),
    responses((status = 200, description = "The subscription.", body = Subscription)),
)]
pub(crate) async fn get_subscription(
    Viewer(caller): Viewer,
    state: State,
    InPath(name): InPath<Name>,
) -> Result<Json<Subscription>, Problem> {
    let subscription =
        subscriptions::get_by_name(&mut *caller.read(&state).await?, caller.tenant_id, &name).await?;
    Ok(Json(subscription.ok_or_else(Problem::not_found)?.into()))
}
