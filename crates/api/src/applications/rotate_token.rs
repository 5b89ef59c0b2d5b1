use postrider_core::{name::Name, token::Kind};
use postrider_store::{
    applications,
    audit::{Action, Change, Target},
};

use super::WithToken;
use crate::{authenticate::Developer, body::Json, problem::Problem, request::InPath, secret, state::State};

/// Replaces an application's publish token.
///
/// The old token is refused from the answer on.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/applications/{application}/rotate-token",
    tag = "Applications",
    security(("managementToken" = ["developer"])),
    responses((status = 200, description = "Replaced. The new token is shown this once.", body = WithToken)),
)]
pub(crate) async fn rotate_application_token(
    Developer(caller): Developer,
    state: State,
    InPath(name): InPath<Name>,
) -> Result<Json<WithToken>, Problem> {
    let (publish_token, token_hash) = secret::mint_token(Kind::Publish, &state)?;
    let mut edit = caller.edit(&state).await?;
    let found = applications::get_by_name(&mut **edit, caller.tenant_id, &name).await?;
    let id = found.ok_or_else(Problem::not_found)?.id;
    let application = applications::rotate_token(&mut edit, caller.tenant_id, id, &token_hash).await?;
    let target = Target::new("application", id, &application.name);
    edit.commit(Change::whole(Action::ApplicationTokenRotated, target)).await?;
    Ok(Json(WithToken { application: application.into(), publish_token }))
}
