//! Users: people of the tenant, who log in with an e-mail address and a password. Only owners see and change them.

mod create;
mod delete;
mod get;
mod list;
mod update;

use postrider_core::{
    email::Email,
    id::UserId,
    password::{Hash, Password, SALT_LENGTH},
    role::Role,
};
use postrider_store::users::User;
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{keys::roles, problem::Problem, random, state::State};

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(list::list_users, create::create_user)).routes(routes!(
        get::get_user,
        update::update_user,
        delete::delete_user
    ))
}

/// Somebody who logs in.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = User)]
pub(crate) struct Shown {
    #[schema(value_type = String, example = "usr_0192f3a0000070008000000000010000")]
    id: UserId,
    #[schema(value_type = String, example = "ada@example.com")]
    email: Email,
    #[schema(schema_with = roles)]
    role: Role,
    /// A disabled user cannot log in, and sessions begun before are over.
    enabled: bool,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

impl From<User> for Shown {
    fn from(user: User) -> Self {
        Self {
            id: user.id,
            email: user.email,
            role: user.role,
            enabled: user.enabled,
            created_at: user.created_at,
            updated_at: user.updated_at,
        }
    }
}

/// Checks a new password, which stands in this field, and hashes it, before any transaction begins: it takes a while.
pub(crate) async fn hash(
    field: &str,
    password: Password,
    email: &Email,
    state: &State,
) -> Result<Hash, Problem> {
    password.check(email).map_err(|refusal| Problem::invalid_field(field, refusal.to_string()))?;
    let salt = random::bytes::<SALT_LENGTH>()?;
    let hashed = state.hashing().run(move || password.hash(salt)).await?;
    hashed.map_err(|error| Problem::internal(&error))
}
