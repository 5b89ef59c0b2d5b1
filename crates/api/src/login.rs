//! Logging in: an e-mail address and a password become a session, or another password.
//!
//! Invariant: whether an address has an account shows neither in the answer nor in the time it takes, and nobody guesses
//! faster than [`throttle`] lets him, in any number of requests at once.

mod change_password;
mod hashing;
mod log_in;
mod throttle;

use std::net::IpAddr;

use axum::extract::FromRequestParts;
use http::request::Parts;
use postrider_core::{
    email::Email,
    password::{Hash, Password},
    problem::Code,
};
use postrider_store::{
    audit::{Action, Actor, By, Refusal, Target},
    users::{self, Account},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::throttle::Wait;
pub(crate) use self::{hashing::Hashing, throttle::Throttle};
use crate::{address, problem::Problem, state::State};

/// Longest body, in bytes. It is read of callers who are not known, on any number of connections.
const MAX_BODY_BYTES: usize = 4 * 1024;

pub(crate) fn routes() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(log_in::log_in)).routes(routes!(change_password::change_password))
}

/// Where the request comes from.
pub(crate) struct Client(Option<IpAddr>);

impl FromRequestParts<State> for Client {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Self::Rejection> {
        Ok(Self(address::client(parts, state)))
    }
}

impl Client {
    /// The account of whoever proves to have its password.
    ///
    /// # Errors
    /// `401` alike for what is no account, a wrong password and a disabled user; `429` before anything is compared.
    async fn prove(&self, email: &Email, password: &Password, state: &State) -> Result<Account, Problem> {
        let attempt = match state.throttle().admit(email.as_str(), self.0, (state.now)()) {
            Ok(attempt) => attempt,
            Err(wait) => return Err(self.throttled(wait, email, state).await),
        };
        let found = match users::account(&state.pool, email).await {
            Ok(found) => found,
            Err(error) => {
                attempt.did_not_happen();
                return Err(error.into());
            }
        };
        // Whoever hangs up meanwhile has made a failed attempt.
        match is_right(password.clone(), found.as_ref(), state).await {
            Ok(is_right) => match found {
                Some(account) if is_right => {
                    attempt.succeeded();
                    Ok(account)
                }
                found => Err(self.refused(found.as_ref(), email, wrong(), state)),
            },
            Err(problem) => {
                attempt.did_not_happen();
                Err(problem)
            }
        }
    }

    /// Refuses an attempt before anything is compared. Whose account it is about is looked up for the first of many alone, so
    /// that whoever goes on nevertheless costs the database nothing.
    async fn throttled(&self, wait: Wait, email: &Email, state: &State) -> Problem {
        let problem = throttled(wait.seconds);
        if !wait.is_first {
            metrics::counter!("postrider_logins_total", "outcome" => "throttled").increment(1);
            return problem;
        }
        let found = users::account(&state.pool, email).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "whose login was refused is not known");
            None
        });
        self.refused(found.as_ref(), email, problem, state)
    }

    /// Notes a refusal and passes on what the caller is told. An address without an account is not written down: it may
    /// be anything, a password too.
    fn refused(&self, found: Option<&Account>, email: &Email, problem: Problem, state: &State) -> Problem {
        let (action, outcome) = match problem.code() {
            Code::RateLimited => (Action::LoginThrottled, "throttled"),
            _ => (Action::LoginRefused, "refused"),
        };
        let refusal = Refusal {
            tenant_id: found.map(|account| account.tenant_id),
            by: By { actor: Actor::Anonymous, address: self.0 },
            action,
            target: Target {
                kind: "user",
                id: found.map(|account| account.user_id.to_string()),
                name: found.map(|_| email.to_string()),
            },
            reason: problem.code(),
        };
        state.refusals.note(refusal, (state.now)());
        metrics::counter!("postrider_logins_total", "outcome" => outcome).increment(1);
        problem
    }

    /// The user of an account, for the audit log.
    fn by(&self, account: &Account, email: &Email) -> By {
        By { actor: Actor::User { id: account.user_id, email: email.to_string() }, address: self.0 }
    }
}

/// Compares with somebody's hash in any case.
async fn is_right(password: Password, found: Option<&Account>, state: &State) -> Result<bool, Problem> {
    let hash = found.map_or_else(Hash::of_nobody, |account| account.password_hash.clone());
    let is_same = state.hashing().run(move || password.is_of(&hash)).await?;
    Ok(is_same && found.is_some_and(|account| account.enabled))
}

fn wrong() -> Problem {
    Problem::new(Code::Unauthorized, "No user has this e-mail address and password, or the user is disabled.")
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

fn logins_off() -> Problem {
    Problem::new(
        Code::LoginsOff,
        "Nobody can log in here: the operator has not set POSTRIDER_JWT_SECRET. Use a management key.",
    )
}
