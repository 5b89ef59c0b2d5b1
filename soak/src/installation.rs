//! What the soak publishes to: tenants, applications, endpoints and subscriptions, made through the API.

use std::{net::SocketAddr, time::Duration};

use serde_json::{Value, json};

use crate::{
    connection::{Connection, Head},
    error::Error,
    receive::Temper,
};

const TENANTS: [&str; 3] = ["acme", "globex", "initech"];
const APPLICATIONS: [&str; 2] = ["orders", "billing"];
/// Shorter than the longest silence of a receiver.
pub(crate) const ENDPOINT_TIMEOUT: Duration = Duration::from_millis(800);
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Who publishes.
#[derive(Debug, Clone)]
pub(crate) struct Application {
    pub(crate) tenant: &'static str,
    /// Differs from the names of all others, also of other tenants: the ledger tells keys apart by it.
    pub(crate) name: String,
    pub(crate) publish_token: String,
}

/// Makes everything; each event type goes to one endpoint more than the one before, see [`Temper::event_types`].
pub(crate) async fn make(
    server: SocketAddr,
    bootstrap_token: &str,
    receiver: impl Fn(&str) -> String,
) -> Result<Vec<Application>, Error> {
    let mut surface = Surface { connection: open(server).await?, server };
    let mut applications = Vec::new();
    for tenant in TENANTS {
        let made = json!({ "id": tenant, "name": tenant });
        let made = surface.create("/api/admin/tenants", bootstrap_token, &made).await?;
        let owner = text(&made, "ownerToken");
        let below = |resource: &str| format!("/api/tenants/{tenant}/{resource}");
        for temper in Temper::ALL {
            let endpoint = endpoint(temper, &receiver(&temper.path(tenant)));
            surface.create(&below("endpoints"), &owner, &endpoint).await?;
        }
        for application in APPLICATIONS {
            let name = format!("{application}-{tenant}");
            let made = surface.create(&below("applications"), &owner, &json!({ "id": name })).await?;
            for temper in Temper::ALL {
                let subscription = json!({
                    "id": format!("{application}-{}", temper.as_str()),
                    "applicationId": name,
                    "endpointId": temper.as_str(),
                    "eventTypes": temper.event_types(),
                });
                surface.create(&below("subscriptions"), &owner, &subscription).await?;
            }
            applications.push(Application { tenant, name, publish_token: text(&made, "publishToken") });
        }
    }
    Ok(applications)
}

/// Tried again soon, often and for long: what dies in a soak dies of a bug.
fn endpoint(temper: Temper, url: &str) -> Value {
    json!({
        "id": temper.as_str(),
        "url": url,
        "timeoutMs": ENDPOINT_TIMEOUT.as_millis(),
        "maxInFlight": 100,
        "retry": { "maxAttempts": 100, "maxAgeSeconds": 24 * 60 * 60, "initialDelayMs": 100, "maxDelayMs": 1_000 },
    })
}

struct Surface {
    connection: Connection,
    server: SocketAddr,
}

impl Surface {
    async fn create(&mut self, path: &str, token: &str, body: &Value) -> Result<Value, Error> {
        let head = Head { method: "POST", path, token, key: None };
        let exchanged = self.connection.exchange(head, body.to_string().as_bytes(), CALL_LIMIT).await;
        let answer = exchanged.map_err(Error::io("call", path))?;
        if answer.is_last {
            self.connection = open(self.server).await?;
        }
        if answer.status != 201 {
            let (request, body) = (format!("POST {path}"), answer.body.to_string());
            return Err(Error::Refused { request, status: answer.status, body });
        }
        Ok(answer.body)
    }
}

async fn open(server: SocketAddr) -> Result<Connection, Error> {
    Connection::open(server).await.map_err(Error::io("connect to", server.to_string()))
}

fn text(made: &Value, name: &str) -> String {
    made[name].as_str().unwrap_or_default().to_owned()
}
