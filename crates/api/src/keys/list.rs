use postrider_store::management_keys;

use super::Shown;
use crate::{
    authenticate::Owner,
    body::Json,
    page::{List, Page, Wanted},
    problem::Problem,
    request::Query,
    state::State,
};

/// Lists the tenant's management keys, newest first.
///
/// Of revoked keys the 100 that were revoked last are listed.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/keys",
    tag = "Keys",
    security(("managementToken" = ["owner"])),
    params(Wanted),
    responses((status = 200, description = "One page, without tokens.", body = List<Shown>)),
)]
pub(crate) async fn list_keys(
    Owner(caller): Owner,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Shown>>, Problem> {
    let page = Page::try_from(wanted)?;
    let mut reader = caller.read(&state).await?;
    let rows = management_keys::list(&mut *reader, caller.tenant_id, page.slice()).await?;
    Ok(Json(page.list(rows, |row| row.id.as_uuid(), Shown::from)))
}
