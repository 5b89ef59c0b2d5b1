use postrider_core::name::Name;
use postrider_store::tenants;

use super::Shown;
use crate::{authenticate::Bootstrap, body::Json, problem::Problem, request::InPath, state::State};

/// Shows a tenant and its limits.
#[utoipa::path(
    get,
    path = "/api/admin/tenants/{tenant}",
    tag = "Tenants",
    security(("bootstrapToken" = [])),
    responses((status = 200, description = "The tenant.", body = Shown)),
)]
pub(crate) async fn get_tenant(
    _: Bootstrap,
    state: State,
    InPath(name): InPath<Name>,
) -> Result<Json<Shown>, Problem> {
    let tenant = tenants::get_by_name(&state.pool, &name).await?.ok_or_else(Problem::not_found)?;
    Ok(Json(Shown::new(tenant, state.routing.defaults())))
}
