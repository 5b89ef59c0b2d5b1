use axum::extract::Request;
use http::StatusCode;
use postrider_core::{email::Email, password::Password};
use postrider_store::{
    audit::{Action, Change, Target},
    edit::Edit,
    users,
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Client, MAX_BODY_BYTES, logins_off, wrong};
use crate::{body::read_json, problem::Problem, state::State, users::hash};

/// A user's own change of password.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = PasswordChange)]
pub(crate) struct Body {
    #[schema(value_type = String, example = "ada@example.com", max_length = 254)]
    email: Email,
    /// The one that still counts.
    #[schema(value_type = String, format = Password)]
    password: Password,
    /// Any characters; neither the address nor what everybody would try first.
    #[schema(value_type = String, format = Password, min_length = 12, max_length = 128)]
    new_password: Password,
}

/// Replaces one's own password.
///
/// A session is not enough for it, so that nobody keeps what was left open. All sessions of the user are over with the
/// answer. A password that is not known any more is replaced by an owner.
#[utoipa::path(
    post,
    path = "/api/auth/password",
    tag = "Users",
    request_body = Body,
    responses(
        (status = 204, description = "Replaced. Log in again."),
        (status = 401, description = "`unauthorized`: no enabled user has this address and password."),
        (status = 403, description = "`logins_off`: the operator has not set `POSTRIDER_JWT_SECRET`."),
        (status = 429, description = "`rate_limited`: too many attempts failed, for this address or from yours. Wait for \
            the seconds in `Retry-After`."),
        (status = 503, description = "`overloaded`: too many passwords are being checked. `unavailable`: the database \
            does not answer."),
    ),
)]
pub(crate) async fn change_password(
    client: Client,
    state: State,
    request: Request,
) -> Result<StatusCode, Problem> {
    if state.sessions.is_none() {
        return Err(logins_off());
    }
    let Body { email, password, new_password }: Body = read_json(request, MAX_BODY_BYTES).await?;
    let account = client.prove(&email, &password, &state).await?;
    let password_hash = hash("newPassword", new_password, &email, &state).await?;
    let by = client.by(&account, &email);
    let mut edit = Edit::of_tenant(&state.pool, account.tenant_id, by).await?;
    if !users::replace_password(&mut edit, &account, &password_hash).await? {
        // Meanwhile an owner has set another one, or taken the user away.
        return Err(wrong());
    }
    let target = Target::new("user", account.user_id, &email);
    edit.commit(Change { action: Action::UserChanged, target, fields: &["password"] }).await?;
    Ok(StatusCode::NO_CONTENT)
}
