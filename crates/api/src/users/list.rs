use postrider_store::users;

use super::Shown;
use crate::{
    authenticate::Owner,
    body::Json,
    page::{List, Page, Wanted},
    problem::Problem,
    request::Query,
    state::State,
};

/// Lists the tenant's users, newest first.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/users",
    tag = "Users",
    security(("managementToken" = ["owner"])),
    params(Wanted),
    responses((status = 200, description = "One page.", body = List<Shown>)),
)]
pub(crate) async fn list_users(
    Owner(caller): Owner,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Shown>>, Problem> {
    let page = Page::try_from(wanted)?;
    let mut reader = caller.read(&state).await?;
    let rows = users::list(&mut *reader, caller.tenant_id, page.slice()).await?;
    Ok(Json(page.list(rows, |row| row.id.as_uuid(), Shown::from)))
}
