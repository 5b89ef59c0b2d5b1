use postrider_store::applications;

use super::Shown;
use crate::{
    authenticate::Viewer,
    body::Json,
    page::{List, Page, Wanted},
    problem::Problem,
    request::Query,
    state::State,
};

/// Lists the tenant's applications, newest first.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/applications",
    tag = "Applications",
    security(("managementToken" = ["viewer"])),
    params(Wanted),
    responses((status = 200, description = "One page.", body = List<Shown>)),
)]
pub(crate) async fn list_applications(
    Viewer(caller): Viewer,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Shown>>, Problem> {
    let page = Page::try_from(wanted)?;
    let mut reader = caller.read(&state).await?;
    let rows = applications::list(&mut *reader, caller.tenant_id, page.slice()).await?;
    Ok(Json(page.list(rows, |row| row.id.as_uuid(), Shown::from)))
}
