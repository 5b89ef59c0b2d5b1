//! OAuth 2.0 client credentials (RFC 6749, section 4.4): what a token endpoint is asked, and what its answer is worth.
//!
//! Invariant: nothing of an answer but a well-formed bearer token and its lifetime gets any further, and both are
//! bounded whatever the answer says.

use std::{fmt, str::FromStr, time::Duration};

use http::HeaderValue;
use serde::{Deserialize, Serialize};
use url::form_urlencoded::{Serializer, byte_serialize};
use zeroize::Zeroizing;

use super::{
    MAX_PARAMETER_LENGTH, MAX_PASSWORD_LENGTH, Refusal, Secret, basic, is_bounded, is_visible, sensitive,
};

/// Longest access token in bytes.
pub const MAX_ACCESS_TOKEN_LENGTH: usize = 8192;
/// How long a token counts as good where the answer does not say, or says nothing sensible.
pub const ASSUMED_LIFETIME: Duration = Duration::from_secs(5 * 60);
/// A token that claims to live longer is fetched anew after this time.
pub const MAX_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// A token is not used for so long before it expires, or for a fifth of its life if that is less: it has to arrive.
const MARGIN: Duration = Duration::from_secs(30);
const MARGIN_SHARE: u32 = 5;
/// More than the longest form has, so that building one leaves no copies behind: three characters for each byte.
const FORM_CAPACITY: usize = 16 * 1024;

/// How the client proves who it is (RFC 6749, section 2.3.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuthentication {
    /// In the header `Authorization`.
    #[default]
    Basic,
    /// As parameters of the body.
    Body,
}

impl ClientAuthentication {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::Body => "body",
        }
    }
}

impl FromStr for ClientAuthentication {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Basic, Self::Body]
            .into_iter()
            .find(|way| way.as_str() == text)
            .ok_or("a client authenticates by `basic` or `body`")
    }
}

/// What a client credential is made of.
pub struct Parts {
    /// As checked by [`crate::destination`]; it is parsed again by the policy of the day before each fetch.
    pub token_url: String,
    pub client_id: Secret,
    pub client_secret: Secret,
    pub scope: Option<String>,
    pub audience: Option<String>,
    pub client_authentication: ClientAuthentication,
}

/// A client that fetches access tokens.
#[derive(Clone)]
pub struct ClientCredentials {
    token_url: String,
    client_id: Secret,
    client_secret: Secret,
    scope: Option<String>,
    audience: Option<String>,
    client_authentication: ClientAuthentication,
}

impl ClientCredentials {
    pub fn new(parts: Parts) -> Result<Self, Refusal> {
        let Parts { token_url, client_id, client_secret, scope, audience, client_authentication } = parts;
        // RFC 6749, appendix A.1 and A.2.
        if !is_bounded(&client_id, MAX_PARAMETER_LENGTH) || !is_printable(client_id.reveal()) {
            return Err(Refusal::ClientId);
        }
        if !is_bounded(&client_secret, MAX_PASSWORD_LENGTH) || !is_printable(client_secret.reveal()) {
            return Err(Refusal::ClientSecret);
        }
        if scope.as_deref().is_some_and(|scope| !is_scope(scope)) {
            return Err(Refusal::Scope);
        }
        let is_audience = |text: &str| (1..=MAX_PARAMETER_LENGTH).contains(&text.len()) && is_visible(text);
        if audience.as_deref().is_some_and(|audience| !is_audience(audience)) {
            return Err(Refusal::Audience);
        }
        Ok(Self { token_url, client_id, client_secret, scope, audience, client_authentication })
    }

    /// Where tokens are asked for; for [`crate::destination`], never for logs or reads.
    pub fn token_url(&self) -> &str {
        &self.token_url
    }

    /// The same client with its token URL in the form that [`crate::destination`] stores.
    #[must_use]
    pub fn at(self, token_url: String) -> Self {
        Self { token_url, ..self }
    }

    /// The body of a token request, `application/x-www-form-urlencoded`.
    pub fn form(&self) -> Zeroizing<String> {
        let mut form = Serializer::new(String::with_capacity(FORM_CAPACITY));
        form.append_pair("grant_type", "client_credentials");
        match self.client_authentication {
            ClientAuthentication::Basic => {}
            ClientAuthentication::Body => {
                form.append_pair("client_id", self.client_id.reveal());
                form.append_pair("client_secret", self.client_secret.reveal());
            }
        }
        for (name, value) in [("scope", &self.scope), ("audience", &self.audience)] {
            if let Some(value) = value {
                form.append_pair(name, value);
            }
        }
        Zeroizing::new(form.finish())
    }

    /// The value of a token request's `Authorization`, where it has one. Both parts are form-encoded first, as RFC 6749,
    /// section 2.3.1 has it.
    pub fn authorization(&self) -> Option<HeaderValue> {
        let encoded =
            |secret: &Secret| Zeroizing::new(byte_serialize(secret.reveal().as_bytes()).collect::<String>());
        match self.client_authentication {
            ClientAuthentication::Basic => basic(&encoded(&self.client_id), &encoded(&self.client_secret)),
            ClientAuthentication::Body => None,
        }
    }

    pub(super) fn into_parts(self) -> Parts {
        let Self { token_url, client_id, client_secret, scope, audience, client_authentication } = self;
        Parts { token_url, client_id, client_secret, scope, audience, client_authentication }
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Parts").finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ClientCredentials")
            .field("client_authentication", &self.client_authentication)
            .finish_non_exhaustive()
    }
}

/// Why an answer of a token endpoint is worth nothing. The texts repeat nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("is not a JSON object with the members of RFC 6749, section 5.1")]
    Form,
    #[error("has no `access_token`")]
    NoToken,
    #[error("has a `token_type` other than `bearer`")]
    TokenType,
    #[error(
        "has an `access_token` that cannot stand in a header, or is longer than {MAX_ACCESS_TOKEN_LENGTH} bytes"
    )]
    Token,
}

/// An access token, ready to be sent.
#[derive(Debug, Clone)]
pub struct Granted {
    /// `Bearer` and the token, marked sensitive.
    pub authorization: HeaderValue,
    /// For how long it may be used, margin taken off.
    pub usable: Duration,
}

#[derive(Deserialize)]
struct Answer {
    access_token: Option<Secret>,
    token_type: Option<String>,
    expires_in: Option<serde_json::Value>,
}

impl Granted {
    /// Reads the body of a successful answer (RFC 6749, section 5.1).
    pub fn read(body: &[u8]) -> Result<Self, Fault> {
        // A list would be read, too, as the members in their order.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err(Fault::Form);
        }
        let answer: Answer = serde_json::from_slice(body).map_err(|_| Fault::Form)?;
        let token = answer.access_token.ok_or(Fault::NoToken)?;
        if !answer.token_type.is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
            return Err(Fault::TokenType);
        }
        if !is_bounded(&token, MAX_ACCESS_TOKEN_LENGTH) || !is_visible(token.reveal()) {
            return Err(Fault::Token);
        }
        let text = Zeroizing::new(["Bearer ", token.reveal()].concat());
        let authorization = sensitive(&text).ok_or(Fault::Token)?;
        Ok(Self { authorization, usable: usable(lifetime(answer.expires_in.as_ref())) })
    }
}

/// What `expires_in` is worth: a number of seconds, or one in quotes as some servers write it.
fn lifetime(expires_in: Option<&serde_json::Value>) -> Duration {
    let seconds = match expires_in {
        Some(serde_json::Value::Number(number)) => number.as_f64(),
        Some(serde_json::Value::String(text)) => text.parse::<u64>().ok().and_then(|seconds| {
            // More than a day is cut anyway.
            u32::try_from(seconds).ok().or(Some(u32::MAX)).map(f64::from)
        }),
        Some(_) | None => None,
    };
    match seconds {
        Some(seconds) if seconds >= 1.0 => Duration::from_secs_f64(seconds.min(MAX_LIFETIME.as_secs_f64())),
        Some(_) | None => ASSUMED_LIFETIME,
    }
}

fn usable(lifetime: Duration) -> Duration {
    lifetime.saturating_sub(MARGIN.min(lifetime / MARGIN_SHARE))
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

/// RFC 6749, section 3.3 and appendix A.4.
fn is_scope(text: &str) -> bool {
    text.len() <= MAX_PARAMETER_LENGTH
        && text.split(' ').all(|word| !word.is_empty() && is_visible(word) && !word.contains(['"', '\\']))
}
