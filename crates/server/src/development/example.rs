//! The example: a tenant, an application, an endpoint and a subscription, made through the HTTP surface like anyone's,
//! and one event that goes the whole way to the simulator.
//!
//! Invariant: it can be run again at any time, also after an end in the middle: what is there is kept, what was shown only
//! once and not kept is rotated.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, bail};
use http::{Method, StatusCode};
use postrider_simulator::{Simulator, record::Received};
use serde_json::{Value, json};
use url::Url;

use super::secrets::{OWNER_TOKEN, PUBLISH_TOKEN, SIGNING_SECRET, SecretsFile, TENANT};
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
    pub(crate) event_id: String,
    pub(crate) received: Received,
}

impl Example {
    /// Makes what is missing, publishes an event and waits until the simulator has it.
    pub(crate) async fn run(mut surroundings: Surroundings<'_>) -> anyhow::Result<Self> {
        let tenant = surroundings.tenant().await?;
        surroundings.application(&tenant).await?;
        surroundings.endpoint(&tenant).await?;
        surroundings.subscription(&tenant).await?;
        let secret = surroundings.kept(SIGNING_SECRET)?;
        surroundings.simulator.trust(secret)?;
        let event_id = surroundings.publish(&tenant).await?;
        let delivered = surroundings
            .simulator
            .wait_for(|received| received.header("postrider-event-id") == Some(event_id.as_str()));
        let received = tokio::time::timeout(DELIVERY_LIMIT, delivered).await.with_context(|| {
            let seconds = DELIVERY_LIMIT.as_secs();
            format!("{event_id} was accepted but did not reach the simulator within {seconds} s; see the log above")
        })?;
        Ok(Self { tenant, event_id, received })
    }
}

impl Surroundings<'_> {
    /// The tenant whose owner token is kept and still valid, or a new one.
    async fn tenant(&mut self) -> anyhow::Result<String> {
        if let (Some(tenant), Some(token)) = (self.secrets.get(TENANT), self.secrets.get(OWNER_TOKEN)) {
            let path = format!("/api/tenants/{tenant}/endpoints?limit=1");
            let answer = self.ask(Method::GET, &path, token, None).await?;
            if answer.status == StatusCode::OK {
                return Ok(tenant.to_owned());
            }
        }
        for number in 1..=MOST_TENANTS {
            let name = if number == 1 { "example".to_owned() } else { format!("example-{number}") };
            let bootstrap = self.kept(setting::BOOTSTRAP_TOKEN.variable)?;
            let body = json!({ "id": name, "name": "Example" });
            let answer = self.ask(Method::POST, "/api/admin/tenants", bootstrap, Some(body)).await?;
            if answer.status == StatusCode::CREATED {
                // Those of another tenant would be taken for this one's.
                self.secrets.forget(&[PUBLISH_TOKEN, SIGNING_SECRET])?;
                self.secrets.put(OWNER_TOKEN, &field(&answer, "ownerToken")?)?;
                self.secrets.put(TENANT, &name)?;
                return Ok(name);
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
            self.rotate_publish_token(tenant).await?;
        }
        let path = format!("{applications}/{APPLICATION}");
        let enable = Some(json!({ "enabled": true }));
        let answer = self.ask(Method::PATCH, &path, self.kept(OWNER_TOKEN)?, enable).await?;
        expect(&answer, StatusCode::OK, "enabling the application")
    }

    async fn endpoint(&mut self, tenant: &str) -> anyhow::Result<()> {
        let endpoints = format!("/api/tenants/{tenant}/endpoints");
        let url = self.simulator.url("/ok");
        let owner = self.kept(OWNER_TOKEN)?;
        let answer =
            self.ask(Method::POST, &endpoints, owner, Some(json!({ "id": ENDPOINT, "url": url }))).await?;
        if answer.status == StatusCode::CREATED {
            return self.secrets.put(SIGNING_SECRET, &field(&answer, "signingSecret")?);
        }
        expect(&answer, StatusCode::CONFLICT, "creating the endpoint")?;
        // The simulator may listen on another port than the last time.
        let path = format!("{endpoints}/{ENDPOINT}");
        let changes = Some(json!({ "url": url, "enabled": true }));
        let answer = self.ask(Method::PATCH, &path, self.kept(OWNER_TOKEN)?, changes).await?;
        expect(&answer, StatusCode::OK, "changing the endpoint")?;
        if self.secrets.get(SIGNING_SECRET).is_none() {
            let path = format!("{endpoints}/{ENDPOINT}/rotate-secret");
            let answer = self.ask(Method::POST, &path, self.kept(OWNER_TOKEN)?, None).await?;
            expect(&answer, StatusCode::OK, "rotating the signing secret")?;
            self.secrets.put(SIGNING_SECRET, &field(&answer, "signingSecret")?)?;
        }
        Ok(())
    }

    async fn subscription(&self, tenant: &str) -> anyhow::Result<()> {
        let path = format!("/api/tenants/{tenant}/subscriptions");
        let body = json!({
            "id": SUBSCRIPTION, "applicationId": APPLICATION, "endpointId": ENDPOINT, "eventTypes": ["order.*"],
        });
        let owner = self.kept(OWNER_TOKEN)?;
        let answer = self.ask(Method::POST, &path, owner, Some(body)).await?;
        if answer.status == StatusCode::CREATED {
            return Ok(());
        }
        expect(&answer, StatusCode::CONFLICT, "creating the subscription")?;
        let path = format!("{path}/{SUBSCRIPTION}");
        let answer = self.ask(Method::PATCH, &path, owner, Some(json!({ "enabled": true }))).await?;
        expect(&answer, StatusCode::OK, "enabling the subscription")
    }

    async fn publish(&mut self, tenant: &str) -> anyhow::Result<String> {
        let path = format!("/api/tenants/{tenant}/applications/{APPLICATION}/events/order.created");
        let event = json!({ "order": 1, "note": "the first event of this run" });
        let mut answer =
            self.ask(Method::POST, &path, self.kept(PUBLISH_TOKEN)?, Some(event.clone())).await?;
        if answer.status == StatusCode::UNAUTHORIZED {
            // Somebody rotated the token meanwhile.
            self.rotate_publish_token(tenant).await?;
            answer = self.ask(Method::POST, &path, self.kept(PUBLISH_TOKEN)?, Some(event)).await?;
        }
        expect(&answer, StatusCode::ACCEPTED, "publishing the first event")?;
        field(&answer, "id")
    }

    async fn rotate_publish_token(&mut self, tenant: &str) -> anyhow::Result<()> {
        let path = format!("/api/tenants/{tenant}/applications/{APPLICATION}/rotate-token");
        let answer = self.ask(Method::POST, &path, self.kept(OWNER_TOKEN)?, None).await?;
        expect(&answer, StatusCode::OK, "rotating the publish token")?;
        self.secrets.put(PUBLISH_TOKEN, &field(&answer, "publishToken")?)
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

fn field(answer: &Answer, name: &str) -> anyhow::Result<String> {
    let body: Value = serde_json::from_slice(&answer.body).context("the server's answer is not JSON")?;
    let text = body.get(name).and_then(Value::as_str);
    text.map(ToOwned::to_owned).with_context(|| format!("the server's answer has no `{name}`"))
}
