//! A credential's value as callers send it: one member of four, which names the kind.

use std::fmt;

use postrider_core::{
    credential::{
        Basic, Bearer, ClientAuthentication, ClientCredentials, Credential, Header, Kind, Parts, Refusal,
        Secret,
    },
    id::{CredentialId, TenantId},
    seal::{Context, Purpose},
};
use serde::Deserialize;
use utoipa::{
    ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

use crate::{
    change::not_null, endpoints::check_url, object, problem::Problem, random, request::parsed, state::State,
};

/// A credential's value. Exactly one of its members is given.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = CredentialValue)]
pub(crate) struct Value {
    #[serde(default, deserialize_with = "object::given")]
    #[schema(nullable = false)]
    pub(super) bearer: Option<BearerToken>,
    #[serde(default, deserialize_with = "object::given")]
    #[schema(nullable = false)]
    pub(super) basic: Option<UserAndPassword>,
    #[serde(default, deserialize_with = "object::given")]
    #[schema(nullable = false)]
    pub(super) header: Option<OwnHeader>,
    #[serde(default, deserialize_with = "object::given")]
    #[schema(nullable = false)]
    pub(super) oauth2_client_credentials: Option<TokenClient>,
}

/// Sent as `Authorization: Bearer …`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct BearerToken {
    /// Visible ASCII characters.
    #[schema(value_type = String, format = Password, min_length = 1, max_length = 4096)]
    token: Secret,
}

/// Sent as `Authorization: Basic …`. One of both may be empty.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct UserAndPassword {
    /// Without a colon.
    #[schema(value_type = String, max_length = 256)]
    username: Secret,
    #[schema(value_type = String, format = Password, max_length = 1024)]
    password: Secret,
}

/// Sent as a header of this name, by the rules of an endpoint's custom headers.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OwnHeader {
    #[schema(example = "x-api-key", min_length = 1, max_length = 64)]
    name: String,
    #[schema(value_type = String, format = Password, max_length = 1024)]
    value: Secret,
}

/// Fetches access tokens (OAuth 2.0 client credentials, RFC 6749, section 4.4) and sends them as
/// `Authorization: Bearer …`.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TokenClient {
    /// Where tokens are fetched, by the rules of an endpoint's URL.
    #[schema(example = "https://login.example.com/token", max_length = 2048)]
    token_url: String,
    #[schema(value_type = String, min_length = 1, max_length = 1024)]
    client_id: Secret,
    #[schema(value_type = String, format = Password, min_length = 1, max_length = 1024)]
    client_secret: Secret,
    /// Words with a space between them.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(nullable = false, min_length = 1, max_length = 1024)]
    scope: Option<String>,
    /// Some servers want to know for which service a token is.
    #[serde(default, deserialize_with = "not_null")]
    #[schema(nullable = false, min_length = 1, max_length = 1024)]
    audience: Option<String>,
    /// `basic` unless given: id and secret go in the header `Authorization`; with `body`, as parameters.
    #[serde(default, deserialize_with = "parsed")]
    #[schema(schema_with = ways, required = false)]
    client_authentication: Option<ClientAuthentication>,
}

/// The words for how a client proves who it is.
fn ways() -> RefOr<Schema> {
    let ways = [ClientAuthentication::Basic, ClientAuthentication::Body];
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(ways.map(ClientAuthentication::as_str)))
        .description(Some(
            "`basic` unless given: id and secret go in the header `Authorization`; with `body`, as parameters.",
        ))
        .into()
}

impl Value {
    /// Checks a value; a token URL is held to what holds for the URLs of endpoints, its host's addresses included.
    ///
    /// # Errors
    /// `422` naming the member.
    pub(super) async fn check(self, state: &State) -> Result<Credential, Problem> {
        let refused = |refusal: Refusal| Problem::invalid_field(refusal.field(), refusal.to_string());
        match (self.bearer, self.basic, self.header, self.oauth2_client_credentials) {
            (Some(BearerToken { token }), None, None, None) => {
                Bearer::new(token).map(Credential::Bearer).map_err(refused)
            }
            (None, Some(UserAndPassword { username, password }), None, None) => {
                Basic::new(username, password).map(Credential::Basic).map_err(refused)
            }
            (None, None, Some(OwnHeader { name, value }), None) => {
                Header::new(&name, value).map(Credential::Header).map_err(refused)
            }
            (None, None, None, Some(client)) => client.check(state).await.map(Credential::OAuth2),
            (_, _, _, _) => Err(Problem::invalid_field(
                "bearer",
                "give exactly one of `bearer`, `basic`, `header` and `oauth2ClientCredentials`",
            )),
        }
    }
}

/// Where its tokens come from is a part of the credential, too.
impl fmt::Debug for TokenClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TokenClient").finish_non_exhaustive()
    }
}

impl TokenClient {
    async fn check(self, state: &State) -> Result<ClientCredentials, Problem> {
        let Self { token_url, client_id, client_secret, scope, audience, client_authentication } = self;
        let client_authentication = client_authentication.unwrap_or_default();
        let client = ClientCredentials::new(Parts {
            token_url,
            client_id,
            client_secret,
            scope,
            audience,
            client_authentication,
        })
        .map_err(|refusal| Problem::invalid_field(refusal.field(), refusal.to_string()))?;
        // Last: the rest costs nothing to check.
        let destination = check_url("oauth2ClientCredentials.tokenUrl", client.token_url(), state).await?;
        Ok(client.at(destination.to_stored()))
    }
}

/// The member that a value of this kind stands in.
pub(super) const fn member(kind: Kind) -> &'static str {
    match kind {
        Kind::Bearer => "bearer",
        Kind::Basic => "basic",
        Kind::Header => "header",
        Kind::OAuth2 => "oauth2ClientCredentials",
    }
}

/// Seals a value for the row of its credential.
pub(super) fn seal(
    tenant_id: TenantId,
    id: CredentialId,
    credential: &Credential,
    state: &State,
) -> Result<Vec<u8>, Problem> {
    let context = Context { purpose: Purpose::Credential, tenant: tenant_id, row: id.as_uuid() };
    Ok(state.keyring.seal(random::bytes()?, &context, &credential.to_stored()))
}
