use http::StatusCode;
use postrider_core::{id::ManagementKeyId, name::Name, role::Role, token::Kind};
use postrider_store::{
    audit::{Action, Change, Target},
    edit::Edit,
    management_keys::{self, NewManagementKey},
    tenants,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    authenticate::Bootstrap,
    body::Json,
    problem::Problem,
    request::InPath,
    secret::{self, Shown},
    state::State,
};

/// A key for a tenant whose owners have lost theirs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewOwnerKey)]
pub(crate) struct Body {
    /// The key's name: lower-case letters, digits, `-` and `_`.
    #[schema(value_type = String, example = "recovered", min_length = 1, max_length = 64)]
    id: Name,
}

/// An owner's key and its token.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OwnerKey)]
pub(crate) struct Issued {
    #[schema(value_type = String, example = "recovered")]
    id: Name,
    /// A management token with the role `owner`, shown this once.
    #[schema(value_type = String, example = "prm_…")]
    owner_token: Shown,
}

/// Issues a key of the role owner for a tenant.
///
/// For a tenant that can no longer help itself, because the tokens of all its owners are lost or revoked. The tenant's
/// audit log names the bootstrap token.
#[utoipa::path(
    post,
    path = "/api/admin/tenants/{tenant}/owner-key",
    tag = "Tenants",
    security(("bootstrapToken" = [])),
    request_body = Body,
    responses(
        (status = 201, description = "Issued. The owner's token is shown this once.", body = Issued),
        (status = 409, description = "`name_taken`: the tenant has a key of this id, or had one that it still lists."),
    ),
)]
pub(crate) async fn issue_owner_key(
    caller: Bootstrap,
    state: State,
    InPath(name): InPath<Name>,
    Json(body): Json<Body>,
) -> Result<(StatusCode, Json<Issued>), Problem> {
    let (owner_token, token_hash) = secret::mint_token(Kind::Management, &state)?;
    let tenant = tenants::get_by_name(&state.pool, &name).await?.ok_or_else(Problem::not_found)?;
    let key = NewManagementKey {
        id: ManagementKeyId::from_uuid(state.fresh_uuid()),
        name: &body.id,
        role: Role::Owner,
        token_hash: &token_hash,
    };
    let mut edit = Edit::of_operator(&state.pool, Some(tenant.id), caller.by).await?;
    // However many keys there are: a tenant whose keys nobody holds cannot revoke one to make room.
    let key = management_keys::create(&mut edit, tenant.id, key).await?;
    let target = Target::new("key", key.id, &key.name);
    edit.commit(Change { action: Action::KeyIssued, target, fields: &["id"] }).await?;
    Ok((StatusCode::CREATED, Json(Issued { id: body.id, owner_token })))
}
