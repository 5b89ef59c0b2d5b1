use postrider_core::name::Name;
use postrider_store::credentials;

use super::Credential;
use crate::{authenticate::Viewer, body::Json, problem::Problem, request::InPath, state::State};

/// Shows a credential, without its value.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/credentials/{credential}",
    tag = "Credentials",
    security(("managementToken" = ["viewer"])),
    responses((status = 200, description = "The credential.", body = Credential)),
)]
pub(crate) async fn get_credential(
    Viewer(caller): Viewer,
    state: State,
    InPath(name): InPath<Name>,
) -> Result<Json<Credential>, Problem> {
    let mut reader = caller.read(&state).await?;
    let found = credentials::get_by_name(&mut *reader, caller.tenant_id, &name).await?;
    Ok(Json(found.ok_or_else(Problem::not_found)?.into()))
}
