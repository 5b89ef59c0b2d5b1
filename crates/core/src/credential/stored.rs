//! The form of a credential under its seal: one JSON text. What it reads is checked like what a caller sends.

use serde::{Deserialize, Serialize, Serializer};
use zeroize::Zeroizing;

use super::{
    Basic, Bearer, Credential, Header, Refusal, Secret,
    oauth2::{ClientAuthentication, ClientCredentials, Parts},
};

/// More than the longest text has, so that writing leaves no copies behind.
const CAPACITY: usize = 32 * 1024;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum Stored {
    Bearer {
        #[serde(serialize_with = "reveal")]
        token: Secret,
    },
    Basic {
        #[serde(serialize_with = "reveal")]
        username: Secret,
        #[serde(serialize_with = "reveal")]
        password: Secret,
    },
    Header {
        name: String,
        #[serde(serialize_with = "reveal")]
        value: Secret,
    },
    Oauth2ClientCredentials {
        token_url: String,
        #[serde(serialize_with = "reveal")]
        client_id: Secret,
        #[serde(serialize_with = "reveal")]
        client_secret: Secret,
        scope: Option<String>,
        audience: Option<String>,
        client_authentication: ClientAuthentication,
    },
}

pub(super) fn write(credential: &Credential) -> Zeroizing<Vec<u8>> {
    let stored = match credential.clone() {
        Credential::Bearer(Bearer { token }) => Stored::Bearer { token },
        Credential::Basic(Basic { username, password }) => Stored::Basic { username, password },
        Credential::Header(Header { name, value }) => Stored::Header { name: name.to_string(), value },
        Credential::OAuth2(client) => {
            let Parts { token_url, client_id, client_secret, scope, audience, client_authentication } =
                client.into_parts();
            Stored::Oauth2ClientCredentials {
                token_url,
                client_id,
                client_secret,
                scope,
                audience,
                client_authentication,
            }
        }
    };
    let mut text = Zeroizing::new(Vec::with_capacity(CAPACITY));
    // Strings always serialise; a text that were cut short would be refused as damaged.
    let _ = serde_json::to_writer(&mut *text, &stored);
    text
}

pub(super) fn read(text: &[u8]) -> Result<Credential, Refusal> {
    let stored: Stored = serde_json::from_slice(text).map_err(|_| Refusal::Stored)?;
    match stored {
        Stored::Bearer { token } => Bearer::new(token).map(Credential::Bearer),
        Stored::Basic { username, password } => Basic::new(username, password).map(Credential::Basic),
        Stored::Header { name, value } => Header::new(&name, value).map(Credential::Header),
        Stored::Oauth2ClientCredentials {
            token_url,
            client_id,
            client_secret,
            scope,
            audience,
            client_authentication,
        } => {
            let parts = Parts { token_url, client_id, client_secret, scope, audience, client_authentication };
            ClientCredentials::new(parts).map(Credential::OAuth2)
        }
    }
}

fn reveal<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.reveal())
}
