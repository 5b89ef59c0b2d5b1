//! Logging in: an e-mail address and a password become a session.
//!
//! Invariant: whether an address has an account shows neither in the answer nor in the time it takes, and nobody guesses
//! faster than [`throttle`] lets him, in any number of requests at once.

mod hashing;
mod throttle;

use std::net::IpAddr;

use axum::extract::{FromRequestParts, Request};
use http::request::Parts;
use postrider_core::{
    email::Email,
    id::SessionId,
    password::{Hash, Password},
    problem::Code,
    session::{Keys, Session},
};
use postrider_store::{
    audit::{Action, Actor, By, Change, Refusal, Target},
    edit::Edit,
    users::{self, Account},
};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};
use uuid::Uuid;

pub(crate) use self::{hashing::Hashing, throttle::Throttle};
use crate::{
    address,
    body::{Json, read_json},
    problem::Problem,
    random,
    secret::Shown,
    state::State,
};

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(log_in))
}

/// Longest body, in bytes. It is read of callers who are not known, on any number of connections.
const MAX_BODY_BYTES: usize = 4 * 1024;

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

/// Where the request comes from.
pub(crate) struct Client(Option<IpAddr>);

impl FromRequestParts<State> for Client {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Self::Rejection> {
        Ok(Self(address::client(parts, state)))
    }
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
pub(crate) async fn log_in(
    Client(address): Client,
    state: State,
    request: Request,
) -> Result<Json<Begun>, Problem> {
    let keys = state.sessions.as_deref().ok_or_else(logins_off)?;
    let body: Body = read_json(request, MAX_BODY_BYTES).await?;
    let account = users::account(&state.pool, &body.email).await?;
    let about = About { email: &body.email, account: account.as_ref(), address };
    let attempt = state
        .throttle()
        .admit(body.email.as_str(), address, (state.now)())
        .map_err(|seconds| about.refused(Action::LoginThrottled, throttled(seconds), &state))?;
    // Whoever hangs up meanwhile has made a failed attempt.
    let is_right = match is_right(body.password, account.as_ref(), &state).await {
        Ok(is_right) => is_right,
        Err(problem) => {
            attempt.did_not_happen();
            return Err(problem);
        }
    };
    let Some(account) = account.as_ref().filter(|_| is_right) else {
        return Err(about.refused(Action::LoginRefused, wrong(), &state));
    };
    attempt.succeeded();
    let (session, begun) = begin(keys, account, &state)?;
    about.recorded(account, session, &state).await?;
    Ok(Json(begun))
}

/// Compares with somebody's hash in any case.
async fn is_right(password: Password, account: Option<&Account>, state: &State) -> Result<bool, Problem> {
    let hash = account.map_or_else(Hash::of_nobody, |account| account.password_hash.clone());
    let is_same = state.hashing().run(move || password.is_of(&hash)).await?;
    Ok(is_same && account.is_some_and(|account| account.enabled))
}

fn begin(keys: &Keys, account: &Account, state: &State) -> Result<(Session, Begun), Problem> {
    let session = Session {
        id: SessionId::from_uuid(Uuid::from_bytes(random::bytes()?)),
        user_id: account.user_id,
        credential_version: account.credential_version,
    };
    let issued = keys.issue(session, (state.now)()).map_err(|error| Problem::internal(&error))?;
    Ok((session, Begun { token: Shown::from(issued.token), expires_at: issued.expires_at }))
}

/// What an attempt is about, for the audit log.
struct About<'a> {
    email: &'a Email,
    account: Option<&'a Account>,
    address: Option<IpAddr>,
}

impl About<'_> {
    /// Notes a refusal and passes on what the caller is told. An address without an account is not written down: it may
    /// be anything, a password too.
    fn refused(&self, action: Action, problem: Problem, state: &State) -> Problem {
        let refusal = Refusal {
            tenant_id: self.account.map(|account| account.tenant_id),
            by: By { actor: Actor::Anonymous, address: self.address },
            action,
            target: Target {
                kind: "user",
                id: self.account.map(|account| account.user_id.to_string()),
                name: self.account.map(|_| self.email.to_string()),
            },
            reason: problem.code(),
        };
        state.refusals.note(refusal, (state.now)());
        let outcome = if problem.code() == Code::RateLimited { "throttled" } else { "refused" };
        metrics::counter!("postrider_logins_total", "outcome" => outcome).increment(1);
        problem
    }

    /// Without its entry in the audit log there is no session.
    async fn recorded(&self, account: &Account, session: Session, state: &State) -> Result<(), Problem> {
        let actor = Actor::User { id: account.user_id, email: self.email.to_string() };
        let by = By { actor, address: self.address };
        let edit = Edit::of_operator(&state.pool, Some(account.tenant_id), by).await?;
        edit.commit(Change::whole(Action::LoginSucceeded, Target::of_id("session", session.id))).await?;
        metrics::counter!("postrider_logins_total", "outcome" => "succeeded").increment(1);
        Ok(())
    }
}

fn wrong() -> Problem {
    Problem::new(Code::Unauthorized, "No user has this e-mail address and password, or the user is disabled.")
}

fn logins_off() -> Problem {
    Problem::new(
        Code::LoginsOff,
        "Nobody can log in here: the operator has not set POSTRIDER_JWT_SECRET. Use a management key.",
    )
}

fn throttled(seconds: u32) -> Problem {
    Problem::new(
        Code::RateLimited,
        format!(
            "Too many attempts failed, for this e-mail address or from yours. Try again in {seconds} seconds."
        ),
    )
    .retry_after(seconds)
}
