//! Who is calling. A handler names the credential it needs as its first parameter and gets the tenant from it; the
//! tenant in the path is only compared here and never reaches a handler.
//!
//! | caller presents | answer |
//! |---|---|
//! | nothing, or something unknown or revoked | `401` with `WWW-Authenticate` |
//! | a known credential of another kind, or too small a role | `403` |
//! | a fitting credential of another tenant (or application) | `404` |

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::{header, request::Parts};
use postrider_core::{
    id::TenantId,
    problem::Code,
    role::Role,
    token::{Kind, Token, same_secret},
};
use postrider_store::{
    management_keys::{self, Credential},
    routing::Routing,
};

use crate::{problem::Problem, request::path_params, state::State};

/// The operator's bootstrap token: creates tenants, and nothing else.
#[derive(Debug, Clone, Copy)]
pub struct Bootstrap;

/// The operator's metrics token: reads `/metrics`, and nothing else.
#[derive(Debug, Clone, Copy)]
pub struct Metrics;

/// A management credential of the tenant in the path.
#[derive(Debug, Clone)]
pub struct Management {
    pub tenant_id: TenantId,
}

/// Any management credential of the tenant in the path.
#[derive(Debug, Clone)]
pub struct Viewer(pub Management);

/// A management credential of the tenant in the path with the role developer or owner.
#[derive(Debug, Clone)]
pub struct Developer(pub Management);

/// The publish token of the application in the path, which is enabled.
#[derive(Debug, Clone)]
pub struct Publisher {
    pub routing: Arc<Routing>,
}

/// A secret of the operator's own choosing, from the configuration.
#[derive(Clone)]
pub struct OperatorToken(Box<str>);

impl From<&str> for OperatorToken {
    fn from(secret: &str) -> Self {
        Self(secret.into())
    }
}

impl std::fmt::Debug for OperatorToken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("OperatorToken(redacted)")
    }
}

/// Whose credential was presented.
enum Caller {
    Bootstrap,
    Metrics,
    Management(Credential),
    Publisher(Arc<Routing>),
}

impl FromRequestParts<State> for Bootstrap {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
        match identify(parts, state).await? {
            Caller::Bootstrap => Ok(Self),
            Caller::Metrics | Caller::Management(_) | Caller::Publisher(_) => {
                Err(forbidden("Only the bootstrap token may do this."))
            }
        }
    }
}

impl FromRequestParts<State> for Metrics {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
        match identify(parts, state).await? {
            Caller::Metrics => Ok(Self),
            Caller::Bootstrap | Caller::Management(_) | Caller::Publisher(_) => {
                Err(forbidden("Only the metrics token reads the metrics."))
            }
        }
    }
}

macro_rules! role {
    ($extractor:ident, $role:expr) => {
        impl FromRequestParts<State> for $extractor {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
                management(parts, state, $role).await.map(Self)
            }
        }
    };
}

role!(Viewer, Role::Viewer);
role!(Developer, Role::Developer);

impl FromRequestParts<State> for Publisher {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
        let routing = match identify(parts, state).await? {
            Caller::Publisher(routing) => routing,
            Caller::Bootstrap | Caller::Metrics | Caller::Management(_) => {
                return Err(forbidden("Only an application's publish token may publish."));
            }
        };
        let is_own = names_in_path(
            parts,
            state,
            &[("tenant", routing.tenant_name.as_str()), ("application", routing.application_name.as_str())],
        )
        .await?;
        if !is_own {
            return Err(Problem::not_found());
        }
        if routing.enabled { Ok(Self { routing }) } else { enabled_again(&routing, state).await }
    }
}

/// A copy in memory may be from before the application was enabled again, and a publisher that is turned away here
/// never gets as far as ingest, which would notice: so only the newest copy turns anyone away.
async fn enabled_again(seen: &Routing, state: &State) -> Result<Publisher, Problem> {
    let newest = state.routing.reload(seen.application_id).await?;
    let routing = newest.filter(|newest| newest.token_hash == seen.token_hash).ok_or_else(unknown)?;
    if routing.enabled { Ok(Publisher { routing }) } else { Err(application_disabled()) }
}

/// The answer to a publisher whose application is disabled.
pub(crate) fn application_disabled() -> Problem {
    Problem::new(Code::ApplicationDisabled, "The application is disabled. Enable it, then publish again.")
}

async fn management(parts: &mut Parts, state: &State, needed: Role) -> Result<Management, Problem> {
    let key = match identify(parts, state).await? {
        Caller::Management(key) => key,
        Caller::Bootstrap | Caller::Metrics | Caller::Publisher(_) => {
            return Err(forbidden("Only a management token of this tenant may do this."));
        }
    };
    if !names_in_path(parts, state, &[("tenant", key.tenant_name.as_str())]).await? {
        return Err(Problem::not_found());
    }
    if !key.role.includes(needed) {
        return Err(forbidden(format!("The role `{}` may not do this; it takes `{needed}`.", key.role)));
    }
    Ok(Management { tenant_id: key.tenant_id })
}

/// Whether the path's parameters of these names, as far as the route has them, are what the credential says.
async fn names_in_path(parts: &mut Parts, state: &State, own: &[(&str, &str)]) -> Result<bool, Problem> {
    let params = path_params(parts, state).await?;
    let is_own =
        |name: &str, value: &str| own.iter().all(|(own, expected)| *own != name || *expected == value);
    Ok(params.iter().all(|(name, value)| is_own(name, value)))
}

async fn identify(parts: &Parts, state: &State) -> Result<Caller, Problem> {
    let presented = bearer(parts)?;
    let Ok(token) = Token::parse(presented) else {
        let is = |own: &Option<OperatorToken>| {
            own.as_ref().is_some_and(|OperatorToken(expected)| same_secret(presented, expected))
        };
        return match (is(&state.bootstrap_token), is(&state.metrics_token)) {
            (true, _) => Ok(Caller::Bootstrap),
            (false, true) => Ok(Caller::Metrics),
            (false, false) => Err(unknown()),
        };
    };
    let hash = state.pepper.hash(&token);
    match token.kind() {
        Kind::Publish => state.routing.by_token(&hash).await?.map(Caller::Publisher),
        Kind::Management => {
            management_keys::get_by_token_hash(&state.pool, &hash).await?.map(Caller::Management)
        }
    }
    .ok_or_else(unknown)
}

/// The token behind `Authorization: Bearer` (RFC 6750, section 2.1).
fn bearer(parts: &Parts) -> Result<&str, Problem> {
    let mut values = parts.headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(Problem::new(
            Code::Unauthorized,
            "Send your credential once, in the header `Authorization: Bearer TOKEN`.",
        ));
    };
    let (scheme, token) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(not_bearer)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(token.trim()) } else { Err(not_bearer()) }
}

fn not_bearer() -> Problem {
    Problem::new(
        Code::Unauthorized,
        "Send the token with the word `Bearer` before it, as in `Authorization: Bearer TOKEN`. `Basic` and other \
         schemes are not taken.",
    )
}

/// The answer to a caller whose credential is not, or no longer, known.
pub(crate) fn unknown() -> Problem {
    Problem::new(
        Code::Unauthorized,
        "The credential is unknown or revoked. Send `Authorization: Bearer TOKEN` with a valid token.",
    )
}

fn forbidden(detail: impl Into<String>) -> Problem {
    Problem::new(Code::Forbidden, detail)
}
