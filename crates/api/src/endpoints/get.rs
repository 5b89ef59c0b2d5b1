use postrider_core::name::Name;
use postrider_store::endpoints;

use super::Endpoint;
use crate::{authenticate::Viewer, body::Json, problem::Problem, request::InPath, state::State};

/// Shows an endpoint.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/endpoints/{endpoint}",
    tag = "Endpoints",
    security(("managementToken" = ["viewer"])),
    responses((status = 200, description = "The endpoint.", body = Endpoint)),
)]
pub(crate) async fn get_endpoint(
    Viewer(caller): Viewer,
    state: State,
    InPath(name): InPath<Name>,
) -> Result<Json<Endpoint>, Problem> {
    let found = endpoints::get_by_name(&mut *caller.read(&state).await?, caller.tenant_id, &name).await?;
    Endpoint::new(found.ok_or_else(Problem::not_found)?, &caller, &state).map(Json)
}
