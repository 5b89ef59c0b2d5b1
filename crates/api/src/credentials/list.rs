use postrider_store::credentials;

use super::Credential;
use crate::{
    authenticate::Viewer,
    body::Json,
    page::{List, Page, Wanted},
    problem::Problem,
    request::Query,
    state::State,
};

/// Lists the tenant's credentials, newest first, without their values.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/credentials",
    tag = "Credentials",
    security(("managementToken" = ["viewer"])),
    params(Wanted),
    responses((status = 200, description = "A page of credentials.", body = List<Credential>)),
)]
pub(crate) async fn list_credentials(
    Viewer(caller): Viewer,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Credential>>, Problem> {
    let page = Page::try_from(wanted)?;
    let mut reader = caller.read(&state).await?;
    let rows = credentials::list(&mut *reader, caller.tenant_id, page.slice()).await?;
    Ok(Json(page.list(rows, |row| row.id.as_uuid(), Credential::from)))
}
