use http::StatusCode;
use postrider_core::{id::ManagementKeyId, name::Name, role::Role, token::Kind};
use postrider_store::{
    audit::{Action, Change, Target},
    management_keys::{self, NewManagementKey},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{WithToken, roles};
use crate::{authenticate::Owner, body::Json, problem::Problem, secret, state::State};

/// A management key to issue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewKey)]
pub(crate) struct Body {
    /// The key's name: lower-case letters, digits, `-` and `_`. A revoked key keeps its name for as long as it is listed.
    #[schema(value_type = String, example = "ci", min_length = 1, max_length = 64)]
    id: Name,
    #[schema(schema_with = roles)]
    role: Role,
}

/// Issues a management key.
///
/// The answer holds its token.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/keys",
    tag = "Keys",
    security(("managementToken" = ["owner"])),
    request_body = Body,
    responses(
        (status = 201, description = "Issued. The token is shown this once.", body = WithToken),
        (status = 409, description = "`name_taken`: the tenant has a key of this id, or had one that it still lists. \
            `limit_reached`: the tenant has 100 keys that are not revoked."),
    ),
)]
pub(crate) async fn issue_key(
    Owner(caller): Owner,
    state: State,
    Json(body): Json<Body>,
) -> Result<(StatusCode, Json<WithToken>), Problem> {
    let (token, token_hash) = secret::mint_token(Kind::Management, &state)?;
    let key = NewManagementKey {
        id: ManagementKeyId::from_uuid(state.fresh_uuid()),
        name: &body.id,
        role: body.role,
        token_hash: &token_hash,
    };
    let mut edit = caller.edit(&state).await?;
    let key = management_keys::issue(&mut edit, caller.tenant_id, key).await?;
    let target = Target::new("key", key.id, &key.name);
    edit.commit(Change { action: Action::KeyIssued, target, fields: &["id", "role"] }).await?;
    Ok((StatusCode::CREATED, Json(WithToken { key: key.into(), token })))
}
