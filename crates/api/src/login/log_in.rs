use axum::extract::Request;
use postrider_core::{
    email::Email,
    id::SessionId,
    password::Password,
    session::{Issued, Keys, Session},
};
use postrider_store::{
    audit::{Action, Change, Target},
    edit::Edit,
    users::Account,
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{Client, MAX_BODY_BYTES, logins_off};
use crate::{
    body::{Json, read_json},
    problem::Problem,
    random,
    secret::Shown,
    state::State,
};

/// Who logs in.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Login)]
pub(crate) struct Body {
    #[schema(value_type = String, example = "ada@example.com", max_length = 254)]
    email: Email,
    #[schema(value_type = String, format = Password)]
    password: Password,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Session)]
pub(crate) struct Begun {
    /// Manages the tenant, within the user's role of the moment, as a management token does.
    #[schema(value_type = String, example = "eyJ…")]
    token: Shown,
    /// 15 minutes from now. Log in again for another session.
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

/// Begins a session of a user.
///
/// It ends after 15 minutes, and at once when the user is disabled or deleted or gets another password.
#[utoipa::path(
    post,
    path = "/api/auth/login",
    tag = "Users",
    request_body = Body,
    responses(
        (status = 200, description = "Logged in. Send the token as `Authorization: Bearer TOKEN`.", body = Begun),
        (status = 401, description = "`unauthorized`: no enabled user has this address and password."),
        (status = 403, description = "`logins_off`: the operator has not set `POSTRIDER_JWT_SECRET`."),
        (status = 429, description = "`rate_limited`: too many attempts failed, for this address or from yours. Wait for \
            the seconds in `Retry-After`."),
        (status = 503, description = "`overloaded`: too many passwords are being checked. `unavailable`: the database \
            does not answer."),
    ),
)]
pub(crate) async fn log_in(client: Client, state: State, request: Request) -> Result<Json<Begun>, Problem> {
    let keys = state.sessions.as_deref().ok_or_else(logins_off)?;
    let body: Body = read_json(request, MAX_BODY_BYTES).await?;
    let account = client.prove(&body.email, &body.password, &state).await?;
    let (session, issued) = begin(keys, &account, &state)?;
    // Without its entry in the audit log there is no session.
    let by = client.by(&account, &body.email);
    let edit = Edit::of_operator(&state.pool, Some(account.tenant_id), by).await?;
    edit.commit(Change::whole(Action::LoginSucceeded, Target::of_id("session", session.id))).await?;
    metrics::counter!("postrider_logins_total", "outcome" => "succeeded").increment(1);
    Ok(Json(Begun { token: Shown::from(issued.token), expires_at: issued.expires_at }))
}

fn begin(keys: &Keys, account: &Account, state: &State) -> Result<(Session, Issued), Problem> {
    let session = Session {
        id: SessionId::from_uuid(Uuid::from_bytes(random::bytes()?)),
        user_id: account.user_id,
        credential_version: account.credential_version,
    };
    let issued = keys.issue(session, (state.now)()).map_err(|error| Problem::internal(&error))?;
    Ok((session, issued))
}
