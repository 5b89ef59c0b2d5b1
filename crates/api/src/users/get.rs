use postrider_core::id::UserId;
use postrider_store::users;

use super::Shown;
use crate::{authenticate::Owner, body::Json, problem::Problem, request::InPath, state::State};

/// Shows a user.
#[utoipa::path(
    get,
    path = "/api/tenants/{tenant}/users/{user}",
    tag = "Users",
    security(("managementToken" = ["owner"])),
    responses((status = 200, description = "The user.", body = Shown)),
)]
pub(crate) async fn get_user(
    Owner(caller): Owner,
    state: State,
    InPath(id): InPath<UserId>,
) -> Result<Json<Shown>, Problem> {
    let mut reader = caller.read(&state).await?;
    let user = users::get(&mut *reader, caller.tenant_id, id).await?;
    Ok(Json(user.ok_or_else(Problem::not_found)?.into()))
}
