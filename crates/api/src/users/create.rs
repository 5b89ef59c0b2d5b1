use http::StatusCode;
use postrider_core::{email::Email, id::UserId, password::Password, role::Role};
use postrider_store::{
    audit::{Action, Change, Target},
    users::{self, NewUser},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Shown, hash};
use crate::{authenticate::Owner, body::Json, keys::roles, problem::Problem, state::State};

/// A user to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewUser)]
pub(crate) struct Body {
    /// What the user logs in with. Upper and lower case are the same; no other user of the installation has it.
    #[schema(value_type = String, example = "ada@example.com", max_length = 254)]
    email: Email,
    /// Any characters; neither the address nor what everybody would try first.
    #[schema(value_type = String, format = Password, min_length = 12, max_length = 128)]
    password: Password,
    #[schema(schema_with = roles)]
    role: Role,
}

/// Creates a user, who can log in from then on.
#[utoipa::path(
    post,
    path = "/api/tenants/{tenant}/users",
    tag = "Users",
    security(("managementToken" = ["owner"])),
    request_body = Body,
    responses(
        (status = 201, description = "Created.", body = Shown),
        (status = 409, description = "`email_taken`: a user has this address; of which tenant is not told. \
            `limit_reached`: the tenant has 1,000 users."),
    ),
)]
pub(crate) async fn create_user(
    Owner(caller): Owner,
    state: State,
    Json(body): Json<Body>,
) -> Result<(StatusCode, Json<Shown>), Problem> {
    let password_hash = hash("password", body.password, &body.email, &state).await?;
    let user = NewUser {
        id: UserId::from_uuid(state.fresh_uuid()),
        email: &body.email,
        role: body.role,
        password_hash: &password_hash,
    };
    let mut edit = caller.edit(&state).await?;
    let user = users::create(&mut edit, caller.tenant_id, user).await?;
    let target = Target::new("user", user.id, &user.email);
    let fields = &["email", "password", "role"];
    edit.commit(Change { action: Action::UserCreated, target, fields }).await?;
    Ok((StatusCode::CREATED, Json(user.into())))
}
