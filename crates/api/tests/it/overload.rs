//! Publishers are refused while too much waits to be sent: those who have it waiting, and nobody else.

use std::{collections::HashMap, sync::Arc};

use http::header;
use postrider_core::{
    overload::{Excess, Verdict},
    problem::Code,
};
use postrider_store::backlog::Gate;
use serde_json::json;

use crate::surface::{Surface, Tenant};

fn path(tenant: &str, rest: &str) -> String {
    format!("/api/tenants/{tenant}/{rest}")
}

/// All the ways in which a tenant can have an event stored.
async fn refused_everywhere(surface: &Surface, tenant: &Tenant, name: &str) {
    let batch = json!({ "events": [{ "type": "order.created", "data": 1 }] }).to_string();
    for (token, rest, body) in [
        (&tenant.publish, "applications/orders/events/order.created", "[1]"),
        (&tenant.publish, "applications/orders/events", batch.as_str()),
        (&tenant.publish, "applications/orders/notifications/warehouse", "[1]"),
        (&tenant.developer, "endpoints/warehouse/test", ""),
    ] {
        let reply = surface.post_json(&path(name, rest), token, body.to_owned()).await;
        let problem = reply.expect_problem(Code::Overloaded);
        assert_eq!(reply.header(&header::RETRY_AFTER), "10", "{rest}");
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.contains("Nothing was stored") && detail.contains("`Retry-After`"), "{detail}");
    }
}

async fn accepted(surface: &Surface, tenant: &Tenant, name: &str) {
    let path = path(name, "applications/orders/events/order.created");
    surface.post_json(&path, &tenant.publish, "[1]").await.expect(202);
}

#[tokio::test]
async fn a_tenant_that_causes_the_backlog_is_refused_alone_and_has_stored_nothing() {
    let gate = Arc::<Gate>::default();
    let surface = Surface::with(|settings| settings.gate = Arc::clone(&gate)).await;
    let (acme, globex) = (surface.tenant("acme").await, surface.tenant("globex").await);
    gate.set(Verdict::Tenants(HashMap::from([(acme.id, Excess { waiting: 900, share: 700 })])));
    refused_everywhere(&surface, &acme, "acme").await;
    assert_eq!(surface.stored_events().await, 0);
    accepted(&surface, &globex, "globex").await;
    gate.set(Verdict::Nobody);
    accepted(&surface, &acme, "acme").await;
    assert_eq!(surface.stored_events().await, 2);
}

#[tokio::test]
async fn where_nobody_knows_whose_it_is_everybody_is_refused() {
    let gate = Arc::<Gate>::default();
    let surface = Surface::with(|settings| settings.gate = Arc::clone(&gate)).await;
    let acme = surface.tenant("acme").await;
    gate.set(Verdict::Everybody { waiting: 1_000_000 });
    refused_everywhere(&surface, &acme, "acme").await;
    assert_eq!(surface.stored_events().await, 0);
}

/// A refusal costs nothing of what the tenant may publish.
#[tokio::test]
async fn whoever_is_refused_for_the_backlog_has_spent_nothing_of_its_rate() {
    let gate = Arc::<Gate>::default();
    let surface = Surface::with(|settings| settings.gate = Arc::clone(&gate)).await;
    let acme = surface.tenant("acme").await;
    let limits = json!({ "rate": 0.01, "burst": 1 }).to_string();
    surface.patch("/api/admin/tenants/acme", crate::surface::BOOTSTRAP_TOKEN, limits).await.expect(200);
    gate.set(Verdict::Tenants(HashMap::from([(acme.id, Excess { waiting: 9, share: 7 })])));
    refused_everywhere(&surface, &acme, "acme").await;
    gate.set(Verdict::Nobody);
    accepted(&surface, &acme, "acme").await;
}
