use http::StatusCode;
use postrider_core::{id::ApplicationId, name::Name, token::Kind};
use postrider_store::{
    applications::{self, NewApplication},
    audit::{Action, Change, Target},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::WithToken;
use crate::{authenticate::Developer, body::Json, problem::Problem, secret, state::State};

/// An application to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewApplication)]
pub(crate) struct Body {
    /// The application's name: lower-case letters, digits, `-` and `_`.
    #[schema(value_type = String, example = "orders", min_length = 1, max_length = 64)]
    id: Name,
}

/// Creates an application.
///
/// The answer holds its publish token.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/applications",
    tag = "Applications",
    security(("managementToken" = ["developer"])),
    request_body = Body,
    responses(
        (status = 201, description = "Created. The publish token is shown this once.", body = WithToken),
        (status = 409, description = "`name_taken`: the tenant has an application of this id."),
    ),
)]
pub(crate) async fn create_application(
    Developer(caller): Developer,
    state: State,
    Json(body): Json<Body>,
) -> Result<(StatusCode, Json<WithToken>), Problem> {
    let (publish_token, token_hash) = secret::mint_token(Kind::Publish, &state)?;
    let application = NewApplication {
        id: ApplicationId::from_uuid(state.fresh_uuid()),
        name: &body.id,
        token_hash: &token_hash,
    };
    let mut edit = caller.edit(&state).await?;
    let application = applications::create(&mut edit, caller.tenant_id, application).await?;
    let target = Target::new("application", application.id, &application.name);
    edit.commit(Change { action: Action::ApplicationCreated, target, fields: &["id"] }).await?;
    Ok((StatusCode::CREATED, Json(WithToken { application: application.into(), publish_token })))
}
