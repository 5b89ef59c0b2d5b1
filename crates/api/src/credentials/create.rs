use http::StatusCode;
use postrider_core::{id::CredentialId, name::Name};
use postrider_store::{
    audit::{Action, Change, Target},
    credentials::{self, NewValue},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Credential,
    value::{self, BearerToken, OwnHeader, TokenClient, UserAndPassword, Value},
};
use crate::{authenticate::Owner, body::Json, object, problem::Problem, state::State};

/// A credential to create. Exactly one of the members beside `id` is given; which one says what kind it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = NewCredential)]
pub(crate) struct Body {
    /// The credential's name: lower-case letters, digits, `-` and `_`.
    #[schema(value_type = String, example = "crm", min_length = 1, max_length = 64)]
    id: Name,
    #[serde(default, deserialize_with = "object::given")]
    #[schema(nullable = false)]
    bearer: Option<BearerToken>,
    #[serde(default, deserialize_with = "object::given")]
    #[schema(nullable = false)]
    basic: Option<UserAndPassword>,
    #[serde(default, deserialize_with = "object::given")]
    #[schema(nullable = false)]
    header: Option<OwnHeader>,
    #[serde(default, deserialize_with = "object::given")]
    #[schema(nullable = false)]
    oauth2_client_credentials: Option<TokenClient>,
}

/// Creates a credential for an approved vendor.
///
/// Its value is stored sealed and never shown again. Endpoints name it, and their requests carry it. A token URL is held
/// to the same rules as an endpoint's URL, and its host is looked up.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/credentials",
    tag = "Credentials",
    security(("managementToken" = ["owner"])),
    request_body = Body,
    responses(
        (status = 201, description = "Created.", body = Credential),
        (status = 409, description = "`name_taken`: the tenant has a credential of this id. \
            `limit_reached`: it has 500 credentials."),
    ),
)]
pub(crate) async fn create_credential(
    Owner(caller): Owner,
    state: State,
    Json(body): Json<Body>,
) -> Result<(StatusCode, Json<Credential>), Problem> {
    let Body { id: name, bearer, basic, header, oauth2_client_credentials } = body;
    let value = Value { bearer, basic, header, oauth2_client_credentials };
    let credential = value.check(&state).await?;
    let id = CredentialId::from_uuid(state.fresh_uuid());
    let sealed_value = value::seal(caller.tenant_id, id, &credential, &state)?;
    let fields = ["id", value::member(credential.kind())];
    let value = NewValue { kind: credential.kind(), sealed_value: &sealed_value };
    let mut edit = caller.edit(&state).await?;
    let created = credentials::create(&mut edit, caller.tenant_id, id, &name, value).await?;
    let target = Target::new("credential", id, &name);
    edit.commit(Change { action: Action::CredentialCreated, target, fields: &fields }).await?;
    Ok((StatusCode::CREATED, Json(created.into())))
}
