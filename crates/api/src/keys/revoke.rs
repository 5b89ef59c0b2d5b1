use postrider_core::name::Name;
use postrider_store::{
    audit::{Action, Change, Target},
    management_keys,
};

use super::Shown;
use crate::{authenticate::Owner, body::Json, problem::Problem, request::InPath, state::State};

/// Revokes a management key.
///
/// Its token is refused from the answer on, by every process. Revoking it again changes nothing.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/keys/{key}/revoke",
    tag = "Keys",
    security(("managementToken" = ["owner"])),
    responses(
        (status = 200, description = "Revoked.", body = Shown),
        (status = 409, description = "`last_owner`: nobody else could issue another key."),
    ),
)]
pub(crate) async fn revoke_key(
    Owner(caller): Owner,
    state: State,
    InPath(name): InPath<Name>,
) -> Result<Json<Shown>, Problem> {
    let mut edit = caller.edit(&state).await?;
    let found = management_keys::get_by_name(&mut **edit, caller.tenant_id, &name).await?;
    let key = found.ok_or_else(Problem::not_found)?;
    if key.revoked_at.is_some() {
        return Ok(Json(key.into()));
    }
    let key = management_keys::revoke(&mut edit, caller.tenant_id, key.id, state.logins()).await?;
    edit.commit(Change::whole(Action::KeyRevoked, Target::new("key", key.id, &key.name))).await?;
    Ok(Json(key.into()))
}
