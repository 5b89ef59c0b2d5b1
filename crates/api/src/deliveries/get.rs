use postrider_core::id::DeliveryId;
use postrider_store::deliveries;

use super::Delivery;
use crate::{authenticate::Viewer, body::Json, problem::Problem, request::InPath, state::State};

/// Shows a delivery.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/deliveries/{delivery}",
    tag = "Deliveries",
    security(("managementToken" = ["viewer"])),
    responses((status = 200, description = "The delivery.", body = Delivery)),
)]
pub(crate) async fn get_delivery(
    Viewer(caller): Viewer,
    state: State,
    InPath(id): InPath<DeliveryId>,
) -> Result<Json<Delivery>, Problem> {
    let mut reader = caller.read(&state).await?;
    let delivery = deliveries::get(&mut reader, caller.tenant_id, id).await?;
    delivery.map(|delivery| Json(delivery.into())).ok_or_else(Problem::not_found)
}
