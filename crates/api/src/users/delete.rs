use http::StatusCode;
use postrider_core::id::UserId;
use postrider_store::{
    audit::{Action, Change, Target},
    users,
};

use crate::{authenticate::Owner, problem::Problem, request::InPath, state::State};

/// Deletes a user.
///
/// The user's sessions are over with the answer, in every process. The audit log keeps what the user did.
#[utoipa::path(
    delete,
    path = "/api/tenants/{tenant}/users/{user}",
    tag = "Users",
    security(("managementToken" = ["owner"])),
    responses(
        (status = 204, description = "Deleted."),
        (status = 409, description = "`last_owner`: nobody else could manage keys and users."),
    ),
)]
pub(crate) async fn delete_user(
    Owner(caller): Owner,
    state: State,
    InPath(id): InPath<UserId>,
) -> Result<StatusCode, Problem> {
    let mut edit = caller.edit(&state).await?;
    let found = users::get(&mut **edit, caller.tenant_id, id).await?;
    let user = found.ok_or_else(Problem::not_found)?;
    users::delete(&mut edit, caller.tenant_id, id, state.logins()).await?;
    edit.commit(Change::whole(Action::UserDeleted, Target::new("user", user.id, &user.email))).await?;
    Ok(StatusCode::NO_CONTENT)
}
