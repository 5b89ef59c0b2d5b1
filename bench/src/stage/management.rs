//! What a customer does before the first event, through the HTTP API: tenant, application, endpoints, subscriptions.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::server::BOOTSTRAP_TOKEN;
use crate::load::{message::Target, wire::Incoming};

/// A pattern of every type that is published here.
pub(crate) const EVERY_TYPE: &str = "order.*";
/// Every tenant has one application of this name.
const APPLICATION: &str = "orders";

/// The owner of a tenant.
#[derive(Debug)]
pub(crate) struct Owner {
    address: SocketAddr,
    tenant: String,
    token: String,
}

impl Owner {
    pub(crate) async fn of_new_tenant(address: SocketAddr, tenant: &str) -> anyhow::Result<Self> {
        let body = json!({ "id": tenant, "name": tenant });
        let answer = post(address, "/api/admin/tenants", BOOTSTRAP_TOKEN, &body).await?;
        Ok(Self { address, tenant: tenant.to_owned(), token: text(&answer, "ownerToken")? })
    }

    /// Creates the application; returns where and with what token its events are published.
    pub(crate) async fn application(&self) -> anyhow::Result<Target> {
        let answer = self.create("applications", &json!({ "id": APPLICATION })).await?;
        let path = format!("/api/tenants/{}/applications/{APPLICATION}/events/order.created", self.tenant);
        Ok(Target { address: self.address, path, token: text(&answer, "publishToken")? })
    }

    /// Creates an endpoint with the product's defaults, and a subscription that sends it the events of a type or of a
    /// pattern of types.
    pub(crate) async fn endpoint(&self, name: &str, url: &str, event_type: &str) -> anyhow::Result<()> {
        self.create("endpoints", &json!({ "id": name, "url": url })).await?;
        let subscription = json!({ "id": name, "applicationId": APPLICATION, "endpointId": name, "eventTypes": [event_type] });
        self.create("subscriptions", &subscription).await?;
        Ok(())
    }

    /// Leads an endpoint to another URL.
    pub(crate) async fn redirect(&self, endpoint: &str, url: &str) -> anyhow::Result<()> {
        let what = format!("PATCH /api/tenants/{}/endpoints/{endpoint}", self.tenant);
        send(self.address, &what, &self.token, &json!({ "url": url }), 200).await.map(drop)
    }

    /// Begins to replay every dead letter; returns how many there are.
    pub(crate) async fn replay_all(&self) -> anyhow::Result<u64> {
        let preview = self.create("replays", &json!({ "filter": {} })).await?;
        let what = format!("POST /api/tenants/{}/replays/{}/execute", self.tenant, text(&preview, "id")?);
        send(self.address, &what, &self.token, &Value::Null, 202).await?;
        preview.get("matches").and_then(Value::as_u64).context("a preview counts no letters")
    }

    async fn create(&self, kind: &str, body: &Value) -> anyhow::Result<Value> {
        post(self.address, &format!("/api/tenants/{}/{kind}", self.tenant), &self.token, body).await
    }
}

/// Sets a tenant's limits, as the operator does.
pub(crate) async fn limit(address: SocketAddr, tenant: &str, limits: &Value) -> anyhow::Result<()> {
    let path = format!("/api/admin/tenants/{tenant}");
    send(address, &format!("PATCH {path}"), BOOTSTRAP_TOKEN, limits, 200).await.map(drop)
}

async fn post(address: SocketAddr, path: &str, token: &str, body: &Value) -> anyhow::Result<Value> {
    send(address, &format!("POST {path}"), token, body, 201).await
}

async fn send(
    address: SocketAddr,
    what: &str,
    token: &str,
    body: &Value,
    expected: u16,
) -> anyhow::Result<Value> {
    let mut stream = TcpStream::connect(address).await?;
    let body = body.to_string();
    let request = format!(
        "{what} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut incoming = Incoming::new();
    let answer = incoming.next(&mut stream).await?.context("the server closed the connection")?;
    ensure!(answer.status() == Some(expected), "{what} was answered with {answer}");
    Ok(serde_json::from_slice(answer.body)?)
}

fn text(answer: &Value, name: &str) -> anyhow::Result<String> {
    let text = answer.get(name).and_then(Value::as_str);
    text.map(ToOwned::to_owned).with_context(|| format!("an answer has no `{name}`"))
}
