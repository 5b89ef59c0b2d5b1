//! Names are a tenant's own: what one tenant changes or refers to is never another's, though it has the same name.
//! That foreign paths are unknown is proven for every operation in `access`.

use postrider_core::problem::Code;
use serde_json::json;

use crate::surface::Surface;

/// Everything a tenant can see of its resources.
async fn everything(surface: &Surface, tenant: &str, token: &str) -> Vec<serde_json::Value> {
    let mut seen = Vec::new();
    for kind in ["applications", "endpoints", "subscriptions"] {
        seen.push(surface.get(&format!("/api/tenants/{tenant}/{kind}"), token).await.expect(200));
    }
    seen
}

#[tokio::test]
async fn a_change_reaches_the_tenant_that_made_it_and_no_other() {
    let surface = Surface::new().await;
    let (acme, rival) = (surface.tenant("acme").await, surface.tenant("rival").await);
    let before = everything(&surface, "rival", &rival.viewer).await;
    let base = "/api/tenants/acme";
    for path in ["applications/orders", "endpoints/warehouse", "subscriptions/orders-to-warehouse"] {
        let path = format!("{base}/{path}");
        surface.patch(&path, &acme.developer, r#"{"enabled":false}"#).await.expect(200);
    }
    surface.post(&format!("{base}/applications/orders/rotate-token"), &acme.developer).await.expect(200);
    surface.post(&format!("{base}/endpoints/warehouse/rotate-secret"), &acme.developer).await.expect(200);
    surface.delete(&format!("{base}/subscriptions/orders-to-warehouse"), &acme.developer).await;

    assert_eq!(everything(&surface, "rival", &rival.viewer).await, before);
    let published = surface
        .post_json("/api/tenants/rival/applications/orders/events/order.created", &rival.publish, "{}")
        .await
        .expect(202);
    assert_eq!(published["deliveries"], 1);
}

#[tokio::test]
async fn a_subscription_joins_nothing_of_another_tenant() {
    let surface = Surface::new().await;
    let (acme, rival) = (surface.tenant("acme").await, surface.tenant("rival").await);
    for (kind, body) in [
        ("applications", json!({"id": "secret-app"})),
        ("endpoints", json!({"id": "secret-end", "url": "https://example.com/"})),
    ] {
        let path = format!("/api/tenants/rival/{kind}");
        surface.post_json(&path, &rival.developer, body.to_string()).await.expect(201);
    }
    let before = surface.count("subscriptions").await;
    for (application, endpoint) in
        [("secret-app", "warehouse"), ("orders", "secret-end"), ("secret-app", "secret-end")]
    {
        let body = json!({"id": "bridge", "applicationId": application, "endpointId": endpoint, "eventTypes": ["*"]});
        let reply = surface.post_json("/api/tenants/acme/subscriptions", &acme.owner, body.to_string()).await;
        reply.expect_problem(Code::NotFound);
    }
    assert_eq!(surface.count("subscriptions").await, before);
}
