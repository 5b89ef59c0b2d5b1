use postrider_store::subscriptions;

use super::Subscription;
use crate::{
    authenticate::Viewer,
    body::Json,
    page::{List, Page, Wanted},
    problem::Problem,
    request::Query,
    state::State,
};

/// Lists the tenant's subscriptions, newest first.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/subscriptions",
    tag = "Subscriptions",
    security(("managementToken" = ["viewer"])),
    params(Wanted),
    responses((status = 200, description = "A page of subscriptions.", body = List<Subscription>)),
)]
pub(crate) async fn list_subscriptions(
    Viewer(caller): Viewer,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Subscription>>, Problem> {
    let page = Page::try_from(wanted)?;
    let mut reader = caller.read(&state).await?;
    let rows = subscriptions::list(&mut *reader, caller.tenant_id, page.slice()).await?;
    Ok(Json(page.list(rows, |row| row.id.as_uuid(), Subscription::from)))
}
