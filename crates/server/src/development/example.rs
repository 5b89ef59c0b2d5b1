//! The example: a tenant, an application, an endpoint and a subscription, made through the HTTP surface like anyone's,
//! and one event that goes the whole way to the simulator.
//!
//! Invariant: it can be run again at any time, also after an end in the middle, and never changes what somebody has
//! changed: it creates what is missing, and rotates only what was shown once to a run that ended before it could keep it.
//! The one thing it follows is the simulator's own address.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, bail};
use http::{Method, StatusCode};
use postrider_simulator::{Simulator, record::Received};
use serde_json::{Value, json};
use url::Url;

use super::secrets::{
    OWNER_TOKEN, PUBLISH_TOKEN, SIGNING_KEY_ID, SIGNING_SECRET, SIMULATOR, SecretsFile, TENANT,
};
use crate::{
    client::{self, Answer, Ask},
    configuration::setting,
};

pub(crate) const APPLICATION: &str = "orders";
pub(crate) const ENDPOINT: &str = "simulator";
const SUBSCRIPTION: &str = "orders-to-simulator";

/// Longest wait for one answer of the server.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Longest wait for the delivery of the first event.
const DELIVERY_LIMIT: Duration = Duration::from_secs(45);
/// Names tried for the tenant: one is lost where a run ended before it could keep the owner's token.
const MOST_TENANTS: usize = 20;

/// What the example is made in.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    /// Where the server listens.
    pub(crate) server: SocketAddr,
    pub(crate) simulator: &'a Simulator,
    pub(crate) secrets: &'a mut SecretsFile,
}

/// The example, and how its event went.
#[derive(Debug)]
pub(crate) struct Example {
    pub(crate) tenant: String,
    /// This start made the tenant.
    pub(crate) is_fresh: bool,
    pub(crate) shown: Shown,
}

/// What could be shown.
#[derive(Debug)]
pub(crate) enum Shown {
    /// The simulator got the event.
    Arrived { event_id: String, received: Box<Received>, key: Key },
    /// Somebody has changed the example so that no event gets there; the reason is for a person.
    Nothing { reason: String },
}

/// Whether the kept signing secret is the one that the request was signed under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Kept,
    Rotated,
}

/// Whether events get from the endpoint to the simulator.
enum Endpoint {
    Ready,
    Obstructed { reason: String },
    Missing { reason: String },
}

/// What became of an attempt to publish.
enum Published {
    Accepted { event_id: String },
    Refused { reason: String },
}

impl Example {
    /// Makes what is missing, publishes an event and waits until the simulator has it.
    pub(crate) async fn run(mut surroundings: Surroundings<'_>) -> anyhow::Result<Self> {
        let (tenant, is_fresh) = surroundings.tenant().await?;
        let shown = surroundings.show(&tenant).await?;
        Ok(Self { tenant, is_fresh, shown })
    }
}

impl Surroundings<'_> {
    async fn show(&mut self, tenant: &str) -> anyhow::Result<Shown> {
        self.application(tenant).await?;
        let endpoint_obstacle = match self.endpoint(tenant).await? {
            Endpoint::Ready => None,
            Endpoint::Obstructed { reason } => Some(reason),
            // No subscription can lead to it, and perhaps there never was a secret.
            Endpoint::Missing { reason } => return Ok(Shown::Nothing { reason }),
        };
        self.simulator.trust(self.kept(SIGNING_SECRET)?)?;
        let subscription_obstacle = self.subscription(tenant).await?;
        if let Some(reason) = endpoint_obstacle.or(subscription_obstacle) {
            return Ok(Shown::Nothing { reason });
        }
        let event_id = match self.publish(tenant).await? {
            Published::Accepted { event_id } => event_id,
            Published::Refused { reason } => return Ok(Shown::Nothing { reason }),
        };
        let arrived = self
            .simulator
            .wait_for(|received| received.header("postrider-event-id") == Some(event_id.as_str()));
        let Ok(received) = tokio::time::timeout(DELIVERY_LIMIT, arrived).await else {
            let seconds = DELIVERY_LIMIT.as_secs();
            let reason = format!(
                "{event_id} was accepted but did not reach the simulator within {seconds} s; its timeline and the log \
                 above say why"
            );
            return Ok(Shown::Nothing { reason });
        };
        let kept = self.secrets.get(SIGNING_KEY_ID);
        let is_kept = kept.is_none() || kept == received.header("postrider-key-id");
        let key = if is_kept { Key::Kept } else { Key::Rotated };
        Ok(Shown::Arrived { event_id, received: Box::new(received), key })
    }

    /// The tenant whose owner token is kept and still valid, or a new one, and whether it is new.
    async fn tenant(&mut self) -> anyhow::Result<(String, bool)> {
        if let (Some(tenant), Some(token)) = (self.secrets.get(TENANT), self.secrets.get(OWNER_TOKEN)) {
            let path = format!("/api/tenants/{tenant}/endpoints?limit=1");
            let answer = self.ask(Method::GET, &path, token, None).await?;
            if answer.status == StatusCode::OK {
                return Ok((tenant.to_owned(), false));
            }
        }
        for number in 1..=MOST_TENANTS {
            let name = if number == 1 { "example".to_owned() } else { format!("example-{number}") };
            let bootstrap = self.kept(setting::BOOTSTRAP_TOKEN.variable)?;
            let body = json!({ "id": name, "name": "Example" });
            let answer = self.ask(Method::POST, "/api/admin/tenants", bootstrap, Some(body)).await?;
            if answer.status == StatusCode::CREATED {
                // Those of another tenant would be taken for this one's.
                self.secrets.forget(&[PUBLISH_TOKEN, SIGNING_SECRET, SIGNING_KEY_ID])?;
                self.secrets.put(OWNER_TOKEN, &field(&answer, "ownerToken")?)?;
                self.secrets.put(TENANT, &name)?;
                return Ok((name, true));
            }
            expect(&answer, StatusCode::CONFLICT, "creating the tenant")?;
        }
        bail!(
            "{MOST_TENANTS} example tenants exist and the tokens of none are kept: start with another --data-dir"
        )
    }

    async fn application(&mut self, tenant: &str) -> anyhow::Result<()> {
        let applications = format!("/api/tenants/{tenant}/applications");
        let owner = self.kept(OWNER_TOKEN)?;
        let answer = self.ask(Method::POST, &applications, owner, Some(json!({ "id": APPLICATION }))).await?;
        if answer.status == StatusCode::CREATED {
            return self.secrets.put(PUBLISH_TOKEN, &field(&answer, "publishToken")?);
        }
        expect(&answer, StatusCode::CONFLICT, "creating the application")?;
        if self.secrets.get(PUBLISH_TOKEN).is_none() {
            let path = format!("{applications}/{APPLICATION}/rotate-token");
            let answer = self.ask(Method::POST, &path, self.kept(OWNER_TOKEN)?, None).await?;
            expect(&answer, StatusCode::OK, "rotating the publish token")?;
            self.secrets.put(PUBLISH_TOKEN, &field(&answer, "publishToken")?)?;
        }
        Ok(())
    }

    /// Makes the endpoint if it is missing, and lets it follow the simulator.
    async fn endpoint(&mut self, tenant: &str) -> anyhow::Result<Endpoint> {
        let endpoints = format!("/api/tenants/{tenant}/endpoints");
        let previous = self.secrets.get(SIMULATOR).map(ToOwned::to_owned);
        self.secrets.put(SIMULATOR, &self.simulator.address().to_string())?;
        let body = json!({ "id": ENDPOINT, "url": self.simulator.url("/ok") });
        let answer = self.ask(Method::POST, &endpoints, self.kept(OWNER_TOKEN)?, Some(body)).await?;
        if answer.status == StatusCode::CREATED {
            self.keep_key(&answer)?;
            return Ok(Endpoint::Ready);
        }
        let path = format!("{endpoints}/{ENDPOINT}");
        if answer.status == StatusCode::FORBIDDEN {
            // The tenant is held to approved endpoints by now; one of its own from before still works.
            let found = self.ask(Method::GET, &path, self.kept(OWNER_TOKEN)?, None).await?;
            if found.status == StatusCode::NOT_FOUND {
                let reason = format!(
                    "the endpoint `{ENDPOINT}` is gone, and the tenant is held to approved endpoints"
                );
                return Ok(Endpoint::Missing { reason });
            }
        } else {
            expect(&answer, StatusCode::CONFLICT, "creating the endpoint")?;
        }
        if self.secrets.get(SIGNING_SECRET).is_none() {
            let rotate = format!("{path}/rotate-secret");
            // Nobody here holds the secret before: it is lost.
            let body = Some(json!({ "force": true }));
            let answer = self.ask(Method::POST, &rotate, self.kept(OWNER_TOKEN)?, body).await?;
            expect(&answer, StatusCode::OK, "rotating the signing secret")?;
            self.keep_key(&answer)?;
        }
        let answer = self.ask(Method::GET, &path, self.kept(OWNER_TOKEN)?, None).await?;
        expect(&answer, StatusCode::OK, "reading the endpoint")?;
        if !is_enabled(&answer)? {
            return Ok(Endpoint::Obstructed { reason: format!("the endpoint `{ENDPOINT}` is disabled") });
        }
        let url = field(&answer, "url")?;
        if url.starts_with(&self.simulator.url("/")) {
            return Ok(Endpoint::Ready);
        }
        let script = previous.as_ref().and_then(|address| url.strip_prefix(&format!("http://{address}/")));
        let Some(script) = script else {
            let reason = format!("the endpoint `{ENDPOINT}` leads to {url}, not to the simulator");
            return Ok(Endpoint::Obstructed { reason });
        };
        // It still leads to the simulator, which listens on another port than the last time.
        let changes = Some(json!({ "url": self.simulator.url(&format!("/{script}")) }));
        let answer = self.ask(Method::PATCH, &path, self.kept(OWNER_TOKEN)?, changes).await?;
        if answer.status == StatusCode::OK {
            return Ok(Endpoint::Ready);
        }
        let reason =
            format!("the endpoint `{ENDPOINT}` leads to {url}, where the simulator was the last time");
        Ok(Endpoint::Obstructed { reason })
    }

    fn keep_key(&mut self, answer: &Answer) -> anyhow::Result<()> {
        self.secrets.put(SIGNING_KEY_ID, &field(answer, "keyId")?)?;
        self.secrets.put(SIGNING_SECRET, &field(answer, "signingSecret")?)
    }

    /// Returns why the endpoint gets no events, where it gets none.
    async fn subscription(&self, tenant: &str) -> anyhow::Result<Option<String>> {
        let path = format!("/api/tenants/{tenant}/subscriptions");
        let body = json!({
            "id": SUBSCRIPTION, "applicationId": APPLICATION, "endpointId": ENDPOINT, "eventTypes": ["order.*"],
        });
        let owner = self.kept(OWNER_TOKEN)?;
        let answer = self.ask(Method::POST, &path, owner, Some(body)).await?;
        if answer.status == StatusCode::CREATED {
            return Ok(None);
        }
        expect(&answer, StatusCode::CONFLICT, "creating the subscription")?;
        let answer = self.ask(Method::GET, &format!("{path}/{SUBSCRIPTION}"), owner, None).await?;
        expect(&answer, StatusCode::OK, "reading the subscription")?;
        Ok((!is_enabled(&answer)?).then(|| format!("the subscription `{SUBSCRIPTION}` is disabled")))
    }

    async fn publish(&self, tenant: &str) -> anyhow::Result<Published> {
        let application = format!("/api/tenants/{tenant}/applications/{APPLICATION}");
        let path = format!("{application}/events/order.created");
        let event = json!({ "order": 1, "note": "the first event of this run" });
        let answer = self.ask(Method::POST, &path, self.kept(PUBLISH_TOKEN)?, Some(event)).await?;
        let reason = match answer.status {
            StatusCode::UNAUTHORIZED => {
                let (server, secrets) = (reachable(self.server), self.secrets.path().display());
                format!(
                    "{secrets} holds a publish token that is no longer valid. Put the new one there as \
                     {PUBLISH_TOKEN}, or have another made with\n\n  \
                     curl -sS -X POST http://{server}{application}/rotate-token -H \"Authorization: Bearer ${OWNER_TOKEN}\""
                )
            }
            StatusCode::FORBIDDEN => format!("the application `{APPLICATION}` is disabled"),
            _ => {
                expect(&answer, StatusCode::ACCEPTED, "publishing an event")?;
                let event_id = field(&answer, "id")?;
                if json(&answer)?["deliveries"] != 0 {
                    return Ok(Published::Accepted { event_id });
                }
                format!("{event_id} was accepted, but no subscription takes `order.created` to an endpoint")
            }
        };
        Ok(Published::Refused { reason })
    }

    fn kept(&self, name: &str) -> anyhow::Result<&str> {
        let path = self.secrets.path().display();
        self.secrets.get(name).with_context(|| format!("{path} has no {name}"))
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        token: &str,
        body: Option<Value>,
    ) -> anyhow::Result<Answer> {
        let url = Url::parse(&format!("http://{}{path}", reachable(self.server)))?;
        let body = body.map(|body| body.to_string());
        client::ask(Ask { method, url: &url, bearer: Some(token), body }, ANSWER_LIMIT).await
    }
}

/// An address to connect to: a socket that listens on every interface is reached over loopback.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => (std::net::Ipv4Addr::LOCALHOST, v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (std::net::Ipv6Addr::LOCALHOST, v6.port()).into(),
        SocketAddr::V4(_) | SocketAddr::V6(_) => address,
    }
}

fn expect(answer: &Answer, status: StatusCode, doing: &str) -> anyhow::Result<()> {
    if answer.status == status {
        return Ok(());
    }
    bail!("{doing}: the server answered {}: {}", answer.status, String::from_utf8_lossy(&answer.body))
}

fn json(answer: &Answer) -> anyhow::Result<Value> {
    serde_json::from_slice(&answer.body).context("the server's answer is not JSON")
}

fn is_enabled(answer: &Answer) -> anyhow::Result<bool> {
    json(answer)?["enabled"].as_bool().context("the server's answer has no `enabled`")
}

fn field(answer: &Answer, name: &str) -> anyhow::Result<String> {
    let body = json(answer)?;
    let text = body.get(name).and_then(Value::as_str);
    text.map(ToOwned::to_owned).with_context(|| format!("the server's answer has no `{name}`"))
}
