use http::StatusCode;
use postrider_core::name::Name;
use postrider_store::{
    audit::{Action, Change, Target},
    credentials,
};

use crate::{authenticate::Owner, problem::Problem, request::InPath, state::State};

/// Deletes a credential that no endpoint names.
#[utoipa::path(
    delete,
    path = "/api/tenants/{tenant}/credentials/{credential}",
    tag = "Credentials",
    security(("managementToken" = ["owner"])),
    responses(
        (status = 204, description = "Deleted."),
        (status = 409, description = "`credential_in_use`: an endpoint names it."),
    ),
)]
pub(crate) async fn delete_credential(
    Owner(caller): Owner,
    state: State,
    InPath(name): InPath<Name>,
) -> Result<StatusCode, Problem> {
    let mut edit = caller.edit(&state).await?;
    let id = credentials::lock_by_name(&mut edit, caller.tenant_id, &name).await?;
    credentials::delete(&mut edit, caller.tenant_id, id).await?;
    edit.commit(Change::whole(Action::CredentialDeleted, Target::new("credential", id, &name))).await?;
    Ok(StatusCode::NO_CONTENT)
}
