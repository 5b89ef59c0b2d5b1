use http::StatusCode;
use postrider_core::{
    id::{ApplicationId, ManagementKeyId, TenantId},
    name::Name,
    role::Role,
    token::Kind,
};
use postrider_store::{
    audit::{Action, Change, Target},
    edit::Edit,
    management_keys::NewManagementKey,
    tenants::{self, NewTenant},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    authenticate::Bootstrap,
    body::Json,
    problem::Problem,
    secret::{self, Shown},
    state::State,
};

/// Longest display name, in characters.
const MAX_DISPLAY_NAME_LENGTH: usize = 100;

/// The name of the key that comes with a tenant.
const OWNER_KEY: &str = "owner";

/// A tenant to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewTenant)]
pub(crate) struct Body {
    /// The tenant's name in paths: lower-case letters, digits, `-` and `_`.
    #[schema(value_type = String, example = "acme", min_length = 1, max_length = 64)]
    id: Name,
    /// What people call it.
    #[schema(example = "Acme", min_length = 1, max_length = 100)]
    name: String,
}

/// A tenant and its first credential.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = CreatedTenant)]
pub(crate) struct Created {
    #[schema(value_type = String, example = "acme")]
    id: Name,
    #[schema(example = "Acme")]
    name: String,
    /// A management token with the role `owner`, shown this once; only a keyed hash of it is stored.
    #[schema(value_type = String, example = "prm_…")]
    owner_token: Shown,
}

/// Creates a tenant.
///
/// The answer holds the token of its owner, which manages everything within the tenant.
#[utoipa::path(
    post,
    path = "/api/admin/tenants",
    tag = "Tenants",
    security(("bootstrapToken" = [])),
    request_body = Body,
    responses(
        (status = 201, description = "Created. The owner's token is shown this once.", body = Created),
        (status = 409, description = "`name_taken`: there is a tenant of this id."),
    ),
)]
pub(crate) async fn create_tenant(
    caller: Bootstrap,
    state: State,
    Json(body): Json<Body>,
) -> Result<(StatusCode, Json<Created>), Problem> {
    check_display_name(&body.name)?;
    let (owner_token, token_hash) = secret::mint_token(Kind::Management, &state)?;
    let key_name = OWNER_KEY.parse().map_err(|error| Problem::internal(&error))?;
    let tenant = NewTenant {
        id: TenantId::from_uuid(state.fresh_uuid()),
        name: &body.id,
        display_name: &body.name,
        owner_key: NewManagementKey {
            id: ManagementKeyId::from_uuid(state.fresh_uuid()),
            name: &key_name,
            role: Role::Owner,
            token_hash: &token_hash,
        },
        system_application_id: ApplicationId::from_uuid(state.fresh_uuid()),
    };
    let target = Target::new("tenant", tenant.id, tenant.name);
    let mut edit = Edit::of_operator(&state.pool, Some(tenant.id), caller.by).await?;
    tenants::create(&mut edit, tenant).await?;
    edit.commit(Change { action: Action::TenantCreated, target, fields: &["id", "name"] }).await?;
    Ok((StatusCode::CREATED, Json(Created { id: body.id, name: body.name, owner_token })))
}

fn check_display_name(name: &str) -> Result<(), Problem> {
    let length = name.chars().count();
    let is_plain = !name.chars().any(char::is_control) && name.trim() == name;
    if (1..=MAX_DISPLAY_NAME_LENGTH).contains(&length) && is_plain {
        return Ok(());
    }
    Err(Problem::invalid_field(
        "name",
        format!(
            "a display name has 1 to {MAX_DISPLAY_NAME_LENGTH} characters, no control characters, and no space at \
             either end"
        ),
    ))
}
