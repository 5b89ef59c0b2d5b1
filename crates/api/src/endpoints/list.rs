use postrider_store::endpoints;

use super::Endpoint;
use crate::{
    authenticate::Viewer,
    body::Json,
    page::{List, Page, Wanted},
    problem::Problem,
    request::Query,
    state::State,
};

/// Lists the tenant's endpoints, newest first.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/endpoints",
    tag = "Endpoints",
    security(("managementToken" = ["viewer"])),
    params(Wanted),
    responses((status = 200, description = "A page of endpoints.", body = List<Endpoint>)),
)]
pub(crate) async fn list_endpoints(
    Viewer(caller): Viewer,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Endpoint>>, Problem> {
    let page = Page::try_from(wanted)?;
    let mut reader = caller.read(&state).await?;
    let rows = endpoints::list(&mut *reader, caller.tenant_id, page.slice()).await?;
    let shown = rows.into_iter().map(|row| Ok((row.id.as_uuid(), Endpoint::new(row, &caller, &state)?)));
    let shown: Vec<_> = shown.collect::<Result<_, Problem>>()?;
    Ok(Json(page.list(shown, |(id, _)| *id, |(_, endpoint)| endpoint)))
}
