//! Who is calling. A handler names the credential it needs as its first parameter and gets the tenant from it; the
//! tenant in the path is only compared here and never reaches a handler.
//!
//! | caller presents | answer |
//! |---|---|
//! | nothing, or something unknown or revoked | `401` with `WWW-Authenticate` |
//! | a known credential of another kind, or too small a role | `403` |
//! | a fitting credential of another tenant (or application) | `404` |

use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath};
use http::{header, request::Parts};
use postrider_core::{
    id::TenantId,
    problem::Code,
    role::Role,
    session,
    token::{Kind, Token, same_secret},
};
use postrider_store::{
    audit::{Action, Actor, By, Refusal, Target},
    edit::Edit,
    management_keys::Credential,
    page::begin_read,
    routing::Routing,
    users,
};
use sqlx::PgTransaction;

use crate::{address, outdated, problem::Problem, request::path_params, state::State};

/// The operator's bootstrap token: makes and bounds tenants, and nothing else.
#[derive(Debug, Clone)]
pub struct Bootstrap {
    /// For the audit log.
    pub by: By,
}

/// The operator's metrics token: reads `/metrics`, and nothing else.
#[derive(Debug, Clone, Copy)]
pub struct Metrics;

/// A management credential of the tenant in the path.
#[derive(Debug, Clone)]
pub struct Management {
    pub tenant_id: TenantId,
    pub role: Role,
    /// Who it is, for the audit log.
    pub by: By,
}

impl Management {
    /// Begins a change in the name of this caller. It reaches rows of the caller's tenant only.
    pub(crate) async fn edit(&self, state: &State) -> Result<Edit, Problem> {
        Ok(Edit::of_tenant(&state.pool, self.tenant_id, self.by.clone()).await?)
    }

    /// Begins to read: one snapshot, and rows of the caller's tenant only.
    pub(crate) async fn read(&self, state: &State) -> Result<PgTransaction<'static>, Problem> {
        Ok(begin_read(&state.pool, self.tenant_id).await?)
    }
}

/// Any management credential of the tenant in the path.
#[derive(Debug, Clone)]
pub struct Viewer(pub Management);

/// A management credential of the tenant in the path with the role developer or owner.
#[derive(Debug, Clone)]
pub struct Developer(pub Management);

/// A management credential of the tenant in the path with the role owner.
#[derive(Debug, Clone)]
pub struct Owner(pub Management);

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
            caller @ Caller::Bootstrap => Ok(Self { by: caller.by(parts, state) }),
            caller @ (Caller::Metrics | Caller::Management(_) | Caller::Publisher(_)) => {
                Err(caller.refused(forbidden("Only the bootstrap token may do this."), parts, state))
            }
        }
    }
}

impl FromRequestParts<State> for Metrics {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
        match identify(parts, state).await? {
            Caller::Metrics => Ok(Self),
            caller @ (Caller::Bootstrap | Caller::Management(_) | Caller::Publisher(_)) => {
                Err(caller.refused(forbidden("Only the metrics token reads the metrics."), parts, state))
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
role!(Owner, Role::Owner);

impl FromRequestParts<State> for Publisher {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
        let routing = match identify(parts, state).await? {
            Caller::Publisher(routing) => routing,
            caller @ (Caller::Bootstrap | Caller::Metrics | Caller::Management(_)) => {
                let problem = forbidden("Only an application's publish token may publish.");
                return Err(caller.refused(problem, parts, state));
            }
        };
        let is_own = names_in_path(
            parts,
            state,
            &[("tenant", routing.tenant_name.as_str()), ("application", routing.application_name.as_str())],
        )
        .await?;
        if !is_own {
            return Err(Caller::Publisher(routing).refused(Problem::not_found(), parts, state));
        }
        if routing.enabled { Ok(Self { routing }) } else { enabled_again(&routing, state).await }
    }
}

impl Publisher {
    /// Reads the application anew.
    ///
    /// # Errors
    /// `401` where the token is no longer its own.
    pub(crate) async fn renew(&mut self, state: &State) -> Result<(), Problem> {
        let newest = state.routing.reload(self.routing.application_id).await?;
        self.routing = newest.filter(|newest| newest.has_token_of(&self.routing)).ok_or_else(unknown)?;
        Ok(())
    }
}

/// A copy in memory may be from before the application was enabled again, and a publisher that is turned away here
/// never gets as far as ingest, which would notice: so only the newest copy turns anyone away.
async fn enabled_again(seen: &Arc<Routing>, state: &State) -> Result<Publisher, Problem> {
    let mut publisher = Publisher { routing: Arc::clone(seen) };
    publisher.renew(state).await?;
    if publisher.routing.enabled { Ok(publisher) } else { Err(application_disabled()) }
}

/// The answer to a publisher whose application is disabled.
pub(crate) fn application_disabled() -> Problem {
    Problem::new(Code::ApplicationDisabled, "The application is disabled. Enable it, then publish again.")
}

async fn management(parts: &mut Parts, state: &State, needed: Role) -> Result<Management, Problem> {
    let credential = match identify(parts, state).await? {
        Caller::Management(credential) => credential,
        caller @ (Caller::Bootstrap | Caller::Metrics | Caller::Publisher(_)) => {
            let problem = forbidden("Only a management token of this tenant may do this.");
            return Err(caller.refused(problem, parts, state));
        }
    };
    let is_own = names_in_path(parts, state, &[("tenant", credential.tenant_name.as_str())]).await?;
    let (tenant_id, role) = (credential.tenant_id, credential.role);
    let caller = Caller::Management(credential);
    if !is_own {
        return Err(caller.refused(Problem::not_found(), parts, state));
    }
    if !role.includes(needed) {
        let problem = forbidden(format!("The role `{role}` may not do this; it takes `{needed}`."));
        return Err(caller.refused(problem, parts, state));
    }
    Ok(Management { tenant_id, role, by: caller.by(parts, state) })
}

impl Caller {
    /// Who it is, for the audit log.
    fn by(&self, parts: &Parts, state: &State) -> By {
        let actor = match self {
            Self::Bootstrap => Actor::Bootstrap,
            Self::Metrics => Actor::Metrics,
            Self::Management(credential) => credential.actor.clone(),
            Self::Publisher(routing) => {
                Actor::Application { id: routing.application_id, name: routing.application_name.clone() }
            }
        };
        By { actor, address: address::client(parts, state) }
    }

    /// Notes that a known credential was refused, and passes on what it is told.
    fn refused(&self, problem: Problem, parts: &Parts, state: &State) -> Problem {
        let route = parts.extensions.get::<MatchedPath>().map_or("unknown", MatchedPath::as_str);
        let refusal = Refusal {
            tenant_id: match self {
                Self::Bootstrap | Self::Metrics => None,
                Self::Management(credential) => Some(credential.tenant_id),
                Self::Publisher(routing) => Some(routing.tenant_id),
            },
            by: self.by(parts, state),
            action: Action::AccessRefused,
            // The route's template: the path itself may name another tenant.
            target: Target::named("operation", format!("{} {route}", parts.method)),
            reason: problem.code(),
        };
        state.refusals.note(refusal, (state.now)());
        problem
    }
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
            (false, false) => Box::pin(by_session(presented, state)).await,
        };
    };
    match token.kind() {
        Kind::Publish => {
            let hash = state.peppers.hash(&token);
            let previous_hash = || state.peppers.previous_hash(&token);
            state.routing.by_token(&hash, previous_hash).await?.map(Caller::Publisher)
        }
        // Boxed, since the requests of publishers, which are most, would have to carry the room for it.
        Kind::Management => {
            Box::pin(outdated::management_credential(&token, state)).await?.map(Caller::Management)
        }
    }
    .ok_or_else(unknown)
}

/// Whoever logged in. What he may do now, and in which tenant, stands in his row and not in the token.
async fn by_session(presented: &str, state: &State) -> Result<Caller, Problem> {
    let keys = state.sessions.as_deref().ok_or_else(unknown)?;
    let session = keys.verify(presented, (state.now)()).map_err(|error| match error {
        session::Error::Expired => session_over(),
        session::Error::Forged
        | session::Error::SecretTooShort
        | session::Error::SameSecret
        | session::Error::Library(_) => unknown(),
    })?;
    users::get_by_session(&state.pool, session).await?.map(Caller::Management).ok_or_else(unknown)
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

fn session_over() -> Problem {
    Problem::new(Code::Unauthorized, "The session is over. Log in again.")
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
