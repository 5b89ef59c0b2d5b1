//! What an approved vendor wants to see in a request: a token, a user name and password, a header of its own, or an
//! access token that is fetched first (OAuth 2.0 client credentials).
//!
//! Invariant: a [`Credential`] was checked, so what it puts into a request is one well-formed header. No `Debug`, error
//! or serialisation shows what it holds; it leaves here as a header value marked sensitive, or to be sealed.

mod oauth2;
mod secret;
mod stored;
#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::{HeaderName, HeaderValue, header::AUTHORIZATION};
use zeroize::Zeroizing;

pub use oauth2::{
    ASSUMED_LIFETIME, ClientAuthentication, ClientCredentials, Fault, Granted, MAX_ACCESS_TOKEN_LENGTH,
    MAX_LIFETIME, Parts,
};
pub use secret::Secret;

use crate::header::{self, CustomHeaders};

/// Longest bearer token in bytes: a signed one with many claims fits, and receivers take heads of 8 KiB.
pub const MAX_TOKEN_LENGTH: usize = 4096;
/// Longest user name in bytes.
pub const MAX_USERNAME_LENGTH: usize = 256;
/// Longest password or client secret in bytes.
pub const MAX_PASSWORD_LENGTH: usize = 1024;
/// Longest client id, scope or audience in bytes.
pub const MAX_PARAMETER_LENGTH: usize = 1024;

/// Why a credential is refused. The texts never repeat what was given, but for a header's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("a bearer token has 1 to {MAX_TOKEN_LENGTH} visible ASCII characters and no space")]
    Token,
    #[error("a user name has at most {MAX_USERNAME_LENGTH} bytes, no colon and no control character")]
    Username,
    #[error(
        "a password has at most {MAX_PASSWORD_LENGTH} bytes and no control character, and is not empty where the \
         user name is"
    )]
    Password,
    #[error(transparent)]
    Header(header::Refusal),
    #[error("a client id has 1 to {MAX_PARAMETER_LENGTH} visible ASCII characters, spaces among them")]
    ClientId,
    #[error("a client secret has 1 to {MAX_PASSWORD_LENGTH} visible ASCII characters, spaces among them")]
    ClientSecret,
    #[error(
        "a scope has 1 to {MAX_PARAMETER_LENGTH} characters: words of visible ASCII without `\"` and `\\`, with one \
         space between them"
    )]
    Scope,
    #[error("an audience has 1 to {MAX_PARAMETER_LENGTH} visible ASCII characters and no space")]
    Audience,
    #[error("the stored credential is damaged")]
    Stored,
}

impl Refusal {
    /// Which member of a credential it is about, as a caller writes it.
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Token => "bearer.token",
            Self::Username => "basic.username",
            Self::Password => "basic.password",
            Self::Header(header::Refusal::Value(_)) => "header.value",
            Self::Header(
                header::Refusal::TooMany
                | header::Refusal::Name
                | header::Refusal::Reserved(_)
                | header::Refusal::Repeated(_)
                | header::Refusal::Stored,
            ) => "header.name",
            Self::ClientId => "oauth2ClientCredentials.clientId",
            Self::ClientSecret => "oauth2ClientCredentials.clientSecret",
            Self::Scope => "oauth2ClientCredentials.scope",
            Self::Audience => "oauth2ClientCredentials.audience",
            Self::Stored => "credential",
        }
    }
}

/// A checked credential.
#[derive(Debug, Clone)]
pub enum Credential {
    Bearer(Bearer),
    Basic(Basic),
    Header(Header),
    OAuth2(ClientCredentials),
}

/// What kind of credential it is: all of it that a read shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Bearer,
    Basic,
    Header,
    OAuth2,
}

/// `Authorization: Bearer …` (RFC 6750, section 2.1).
#[derive(Debug, Clone)]
pub struct Bearer {
    token: Secret,
}

/// `Authorization: Basic …` (RFC 7617).
#[derive(Debug, Clone)]
pub struct Basic {
    username: Secret,
    password: Secret,
}

/// A header of the vendor's own, by the rules of an endpoint's custom headers.
#[derive(Debug, Clone)]
pub struct Header {
    name: HeaderName,
    value: Secret,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Bearer, Self::Basic, Self::Header, Self::OAuth2];

    /// The name in the API and the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bearer => "bearer",
            Self::Basic => "basic",
            Self::Header => "header",
            Self::OAuth2 => "oauth2_client_credentials",
        }
    }
}

/// A word that names no kind of credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a credential is of the kind `bearer`, `basic`, `header` or `oauth2_client_credentials`")]
pub struct UnknownKind;

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(UnknownKind)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Credential {
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Bearer(_) => Kind::Bearer,
            Self::Basic(_) => Kind::Basic,
            Self::Header(_) => Kind::Header,
            Self::OAuth2(_) => Kind::OAuth2,
        }
    }

    /// Which header of a request it sets. A custom header of this name has no place beside it.
    pub fn header_name(&self) -> &HeaderName {
        match self {
            Self::Bearer(_) | Self::Basic(_) | Self::OAuth2(_) => &AUTHORIZATION,
            Self::Header(header) => &header.name,
        }
    }

    /// One JSON text, to be sealed and stored.
    pub fn to_stored(&self) -> Zeroizing<Vec<u8>> {
        stored::write(self)
    }

    /// Reads what [`Self::to_stored`] wrote, by the same rules as a caller's.
    pub fn from_stored(stored: &[u8]) -> Result<Self, Refusal> {
        stored::read(stored)
    }
}

impl Bearer {
    pub fn new(token: Secret) -> Result<Self, Refusal> {
        let is_token = is_bounded(&token, MAX_TOKEN_LENGTH) && is_visible(token.reveal());
        if is_token { Ok(Self { token }) } else { Err(Refusal::Token) }
    }

    /// The value of `Authorization`.
    pub fn authorization(&self) -> Option<HeaderValue> {
        sensitive(&Zeroizing::new(["Bearer ", self.token.reveal()].concat()))
    }
}

impl Basic {
    pub fn new(username: Secret, password: Secret) -> Result<Self, Refusal> {
        let fits = |secret: &Secret, longest| {
            secret.reveal().len() <= longest && !secret.reveal().contains(char::is_control)
        };
        if !fits(&username, MAX_USERNAME_LENGTH) || username.reveal().contains(':') {
            return Err(Refusal::Username);
        }
        let is_empty = username.reveal().is_empty() && password.reveal().is_empty();
        if is_empty || !fits(&password, MAX_PASSWORD_LENGTH) {
            return Err(Refusal::Password);
        }
        Ok(Self { username, password })
    }

    /// The value of `Authorization`.
    pub fn authorization(&self) -> Option<HeaderValue> {
        basic(self.username.reveal(), self.password.reveal())
    }
}

impl Header {
    pub fn new(name: &str, value: Secret) -> Result<Self, Refusal> {
        let checked = CustomHeaders::from_pairs([(name, value.reveal())]).map_err(Refusal::Header)?;
        let name = checked.names().next().and_then(|name| name.parse().ok());
        let name = name.ok_or(Refusal::Header(header::Refusal::Name))?;
        Ok(Self { name, value })
    }

    pub const fn name(&self) -> &HeaderName {
        &self.name
    }

    pub fn value(&self) -> Option<HeaderValue> {
        sensitive(self.value.reveal())
    }
}

/// RFC 7617, section 2: both joined by a colon, in base64.
fn basic(username: &str, password: &str) -> Option<HeaderValue> {
    let pair = Zeroizing::new([username, ":", password].concat());
    let encoded = Zeroizing::new(BASE64.encode(pair.as_bytes()));
    sensitive(&Zeroizing::new(["Basic ", &encoded].concat()))
}

/// A value that no `Debug` shows. What was checked can always be one.
fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn is_bounded(secret: &Secret, longest: usize) -> bool {
    (1..=longest).contains(&secret.reveal().len())
}

fn is_visible(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}
