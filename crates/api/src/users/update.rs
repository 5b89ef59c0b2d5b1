use postrider_core::{id::UserId, password::Password, role::Role};
use postrider_store::{
    audit::{Action, Change, Target},
    users::{self, Changes},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Shown, hash};
use crate::{
    authenticate::Owner,
    body::{Json, MergePatch},
    change::{names_of_given, not_null},
    keys::roles,
    problem::Problem,
    request::InPath,
    state::State,
};

/// What to change about a user; what is left out stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UserPatch)]
pub(crate) struct Body {
    #[serde(default, deserialize_with = "not_null")]
    #[schema(schema_with = roles, required = false)]
    role: Option<Role>,
    /// Whether the user can log in.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(nullable = false)]
    enabled: Option<bool>,
    /// Replaces the password; sessions begun under the one before are over.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(
        value_type = String, format = Password, required = false, nullable = false, min_length = 12, max_length = 128
    )]
    password: Option<Password>,
}

/// Changes a user.
///
/// The change is true for the next request of every session, in every process.
#[utoipa::path(
    patch,
    path = "/api/tenants/{tenant}/users/{user}",
    tag = "Users",
    security(("managementToken" = ["owner"])),
    request_body(
        content((Body = "application/merge-patch+json"), (Body = "application/json")),
        description = "A JSON merge patch (RFC 7396).",
    ),
    responses(
        (status = 200, description = "The user as it is now.", body = Shown),
        (status = 409, description = "`last_owner`: nobody else could manage keys and users."),
    ),
)]
pub(crate) async fn update_user(
    Owner(caller): Owner,
    state: State,
    InPath(id): InPath<UserId>,
    MergePatch(body): MergePatch<Body>,
) -> Result<Json<Shown>, Problem> {
    let mut reader = caller.read(&state).await?;
    let found = users::get(&mut *reader, caller.tenant_id, id).await?;
    drop(reader);
    let user = found.ok_or_else(Problem::not_found)?;
    let body = Body {
        role: body.role.filter(|role| *role != user.role),
        enabled: body.enabled.filter(|enabled| *enabled != user.enabled),
        password: body.password,
    };
    let fields = body.fields();
    if fields.is_empty() {
        return Ok(Json(user.into()));
    }
    let password_hash = match body.password {
        Some(password) => Some(hash("password", password, &user.email, &state).await?),
        None => None,
    };
    let changes = Changes { role: body.role, enabled: body.enabled, password_hash: password_hash.as_ref() };
    let mut edit = caller.edit(&state).await?;
    let user = users::update(&mut edit, caller.tenant_id, id, changes, state.logins()).await?;
    let target = Target::new("user", user.id, &user.email);
    edit.commit(Change { action: Action::UserChanged, target, fields: &fields }).await?;
    Ok(Json(user.into()))
}

impl Body {
    /// What changes, by name.
    fn fields(&self) -> Vec<&'static str> {
        let Self { role, enabled, password } = self;
        names_of_given([
            ("role", role.is_some()),
            ("enabled", enabled.is_some()),
            ("password", password.is_some()),
        ])
    }
}
