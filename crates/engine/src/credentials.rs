//! What a vendor wants to see in a request: opened, and where it is an access token, fetched in time.
//!
//! Invariant: a token request goes through the same transport as a delivery, so through the same guard; while it is
//! under way no transaction is open, and the wait for it counts as the attempt's own time.

mod tokens;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use postrider_core::{
    credential::{ClientCredentials, Credential},
    destination::Destination,
    id::{CredentialId, TenantId},
    method::Method,
    retry::{Failure, Outcome},
    success_codes::SuccessCodes,
};

pub use tokens::{TRUST_IN_REPLACEMENT, Token, Tokens};

use crate::{
    transport::{Outgoing, Transport},
    worker::Worker,
};

/// Longest request for a token, from the lookup of the name to the end of the answer.
pub const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

const UNAUTHORIZED: u16 = 401;

/// How an endpoint's requests come by the header that its vendor wants to see.
#[derive(Debug)]
pub enum Carried {
    /// The same in every request.
    Fixed(Presented),
    /// An access token, fetched by this client.
    Token(Arc<Client>),
}

/// One header of one request.
#[derive(Clone)]
pub struct Presented {
    pub name: HeaderName,
    pub value: HeaderValue,
    /// Which of the credential's access tokens it is, where it is one.
    serial: Option<u64>,
}

/// Fetches the access tokens of one credential.
pub struct Client {
    pub tenant_id: TenantId,
    pub credential_id: CredentialId,
    /// Rises with every change of the credential; its tokens are not those of another version.
    pub version: i64,
    /// The token URL, parsed by the policy of endpoints' URLs.
    pub destination: Arc<Destination>,
    pub credentials: ClientCredentials,
}

impl Carried {
    /// What a credential puts into every request; `None` for one whose tokens are fetched, and where what is stored
    /// cannot be a header.
    pub fn fixed(credential: &Credential) -> Option<Self> {
        let value = match credential {
            Credential::Bearer(bearer) => bearer.authorization(),
            Credential::Basic(basic) => basic.authorization(),
            Credential::Header(header) => header.value(),
            Credential::OAuth2(_) => None,
        };
        let name = credential.header_name().clone();
        value.map(|value| Self::Fixed(Presented { name, value, serial: None }))
    }

    /// The header's name.
    pub fn name(&self) -> &HeaderName {
        match self {
            Self::Fixed(presented) => &presented.name,
            Self::Token(_) => &AUTHORIZATION,
        }
    }
}

impl fmt::Debug for Presented {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Presented").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The token URL is a part of the credential, too.
impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Client");
        shown.field("credential_id", &self.credential_id).field("version", &self.version);
        shown.finish_non_exhaustive()
    }
}

impl Client {
    fn request(&self) -> Outgoing {
        let mut headers = HeaderMap::with_capacity(3);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(authorization) = self.credentials.authorization() {
            headers.insert(AUTHORIZATION, authorization);
        }
        Outgoing {
            tenant_id: self.tenant_id,
            method: Method::Post,
            destination: Arc::clone(&self.destination),
            headers,
            body: Bytes::copy_from_slice(self.credentials.form().as_bytes()),
            timeout: FETCH_TIMEOUT,
        }
    }
}

/// The header to send, fetched within `limit` where it has to be.
///
/// # Errors
/// [`postrider_core::retry::FailureKind::CredentialUnavailable`]: there is no token now, and nothing is to be sent.
pub async fn present<T: Transport>(
    worker: &Arc<Worker<T>>,
    carried: &Carried,
    limit: Duration,
) -> Result<Presented, Failure> {
    let client = match carried {
        Carried::Fixed(presented) => return Ok(presented.clone()),
        Carried::Token(client) => client,
    };
    let transport = Arc::clone(worker);
    let fetch = move |request| async move { transport.transport.fetch(request).await };
    let token = tokio::select! {
        token = worker.tokens.get(client, fetch) => token?,
        () = worker.clock.sleep(limit) => return Err(tokens::unavailable("none came within the attempt's time")),
    };
    let Token { authorization, serial } = token;
    Ok(Presented { name: AUTHORIZATION, value: authorization, serial: Some(serial) })
}

/// Looks at an outcome once more: a 401 to an access token is the token's fault, unless its successor fared no better.
pub fn judge<T>(
    worker: &Worker<T>,
    carried: &Carried,
    presented: &Presented,
    outcome: Outcome,
    success_codes: SuccessCodes,
) -> Outcome {
    match (outcome, carried, presented.serial) {
        (Outcome::Answered(answer), Carried::Token(client), Some(serial))
            if answer.status == UNAUTHORIZED
                && !success_codes.contains(UNAUTHORIZED)
                && worker.tokens.refused(client, serial) =>
        {
            Outcome::TokenRefused(answer)
        }
        (outcome, Carried::Fixed(_) | Carried::Token(_), Some(_) | None) => outcome,
    }
}
