use postrider_store::deliveries;

use super::{Delivery, wanted::Wanted};
use crate::{
    authenticate::Viewer, body::Json, database::list_failed, page::List, problem::Problem, request::Query,
    state::State,
};

/// Lists deliveries, open and ended ones alike, newest event first.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/deliveries",
    tag = "Deliveries",
    security(("managementToken" = ["viewer"])),
    params(Wanted),
    responses((status = 200, description = "A page of deliveries.", body = List<Delivery>)),
)]
pub(crate) async fn list_deliveries(
    Viewer(caller): Viewer,
    state: State,
    Query(wanted): Query<Wanted>,
) -> Result<Json<List<Delivery>>, Problem> {
    let page = wanted.page()?;
    let mut transaction = caller.read(&state).await?;
    let rows = deliveries::list(&mut transaction, caller.tenant_id, &wanted.filter(), page.slice())
        .await
        .map_err(list_failed)?;
    Ok(Json(page.list(rows, |delivery| delivery.id.as_uuid(), Delivery::from)))
}
