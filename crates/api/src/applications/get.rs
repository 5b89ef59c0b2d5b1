use postrider_core::name::Name;
use postrider_store::applications;

use super::Shown;
use crate::{authenticate::Viewer, body::Json, problem::Problem, request::InPath, state::State};

/// Shows an application.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/applications/{application}",
    tag = "Applications",
    security(("managementToken" = ["viewer"])),
    responses((status = 200, description = "The application.", body = Shown)),
)]
pub(crate) async fn get_application(
    Viewer(caller): Viewer,
    state: State,
    InPath(name): InPath<Name>,
) -> Result<Json<Shown>, Problem> {
    let application =
        applications::get_by_name(&mut *caller.read(&state).await?, caller.tenant_id, &name).await?;
    Ok(Json(application.ok_or_else(Problem::not_found)?.into()))
}
