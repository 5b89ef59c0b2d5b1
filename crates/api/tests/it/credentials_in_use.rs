//! Credentials that endpoints name: who may, how they change under an endpoint, and how they go.

use postrider_core::problem::Code;
use serde_json::{Value, json};

use crate::{
    credentials::create,
    surface::{Surface, Tenant},
};

const ENDPOINTS: &str = "/api/tenants/acme/endpoints";
const WAREHOUSE: &str = "/api/tenants/acme/endpoints/warehouse";
const CRM: &str = "/api/tenants/acme/credentials/crm";

async fn world() -> (Surface, Tenant) {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    create(&surface, &acme, "crm", &json!({"bearer": {"token": "t-1"}})).await;
    (surface, acme)
}

async fn patch(surface: &Surface, token: &str, change: Value) -> Value {
    surface.patch(WAREHOUSE, token, change.to_string()).await.expect(200)
}

async fn refused(surface: &Surface, token: &str, change: Value) -> Value {
    let problem =
        surface.patch(WAREHOUSE, token, change.to_string()).await.expect_problem(Code::InvalidField);
    assert_eq!(problem["errors"].as_array().map(Vec::len), Some(1), "{problem}");
    problem["errors"][0]["field"].clone()
}

/// The versions that caches go by: of the endpoint, of the plans that lead to it, and of the credential.
async fn versions(surface: &Surface) -> (i64, i64, i64) {
    sqlx::query_as(
        "SELECT e.version, a.routing_version, c.version
           FROM postrider.endpoints AS e, postrider.applications AS a, postrider.credentials AS c
          WHERE e.name = 'warehouse' AND a.name = 'orders' AND c.name = 'crm'",
    )
    .fetch_one(surface.database.pool())
    .await
    .expect("versions")
}

/// A patch that gives the endpoint a credential, and says for which URL.
fn named(credential: &str) -> Value {
    json!({"url": "https://warehouse.example/hooks", "credential": credential})
}

#[tokio::test]
async fn an_endpoint_shows_its_credentials_name_and_a_credential_its_endpoints() {
    let (surface, acme) = world().await;
    let body = json!({"id": "billing", "url": "https://billing.example/", "credential": "crm"});
    let created = surface.post_json(ENDPOINTS, &acme.owner, body.to_string()).await.expect(201);
    assert_eq!(created["credential"], "crm");
    patch(&surface, &acme.owner, named("crm")).await;
    assert_eq!(surface.get(WAREHOUSE, &acme.viewer).await.expect(200)["credential"], "crm");
    let shown = surface.get(CRM, &acme.viewer).await.expect(200);
    assert_eq!((&shown["endpoints"], &shown["endpointCount"]), (&json!(["billing", "warehouse"]), &json!(2)));
    patch(&surface, &acme.owner, json!({"credential": null})).await;
    let shown = surface.get(CRM, &acme.viewer).await.expect(200);
    assert_eq!((&shown["endpoints"], &shown["endpointCount"]), (&json!(["billing"]), &json!(1)));
}

#[tokio::test]
async fn a_credential_goes_nowhere_by_the_hand_of_a_developer() {
    let (surface, acme) = world().await;
    let rival = surface.tenant("rival").await;
    let elsewhere = json!({"url": "https://attacker.example/", "credential": "crm"}).to_string();
    surface.patch(WAREHOUSE, &acme.developer, elsewhere).await.expect_problem(Code::Forbidden);
    let new = json!({"id": "mine", "url": "https://attacker.example/", "credential": "crm"}).to_string();
    surface.post_json(ENDPOINTS, &acme.developer, new.clone()).await.expect_problem(Code::Forbidden);
    let foreign = surface.post_json("/api/tenants/rival/endpoints", &rival.owner, new).await;
    assert_eq!(foreign.expect_problem(Code::InvalidField)["errors"][0]["field"], "credential");

    patch(&surface, &acme.owner, named("crm")).await;
    // Another URL needs it named again, which takes an owner: on a host that many share a path is somebody else's.
    for url in [
        "https://attacker.example/hooks",
        "https://warehouse.example/other",
        "https://warehouse.example/hooks/",
        "https://warehouse.example/Hooks",
        "https://warehouse.example:8443/hooks",
    ] {
        for token in [&acme.developer, &acme.owner] {
            assert_eq!(refused(&surface, token, json!({"url": url})).await, "credential", "{url}");
        }
        let named = json!({"url": url, "credential": "crm"}).to_string();
        surface.patch(WAREHOUSE, &acme.developer, named).await.expect_problem(Code::Forbidden);
    }
    for same in ["https://warehouse.example/hooks", "https://WAREHOUSE.example:443/x/../hooks"] {
        let kept = json!({"url": same, "timeoutMs": 700});
        assert_eq!(patch(&surface, &acme.developer, kept).await["credential"], "crm", "{same}");
    }
    for url in ["https://warehouse.example/other", "https://other.example/"] {
        let renamed = json!({"url": url, "credential": "crm"});
        assert_eq!(patch(&surface, &acme.owner, renamed).await["credential"], "crm", "{url}");
    }
    let without = json!({"url": "https://attacker.example/", "credential": null});
    assert_eq!(patch(&surface, &acme.developer, without).await["credential"], Value::Null);
    assert_eq!(refused(&surface, &acme.owner, named("none")).await, "credential");
}

#[tokio::test]
async fn a_header_is_set_by_the_endpoint_or_by_its_credential() {
    let (surface, acme) = world().await;
    create(&surface, &acme, "key", &json!({"header": {"name": "x-key", "value": "k"}})).await;
    for (headers, credential) in [("Authorization", "crm"), ("X-Key", "key")] {
        let body = json!({
            "id": "both", "url": "https://both.example/", "headers": {headers: "v"}, "credential": credential,
        });
        let reply = surface.post_json(ENDPOINTS, &acme.owner, body.to_string()).await;
        assert_eq!(reply.expect_problem(Code::InvalidField)["errors"][0]["field"], "credential");
    }
    patch(&surface, &acme.owner, json!({"headers": {"authorization": "v"}})).await;
    assert_eq!(refused(&surface, &acme.owner, named("crm")).await, "credential");
    patch(&surface, &acme.owner, named("key")).await;
    assert_eq!(refused(&surface, &acme.developer, json!({"headers": {"x-key": "v"}})).await, "credential");

    // Nor does a replacement come to set what the endpoint sets.
    let before = versions(&surface).await;
    let key = "/api/tenants/acme/credentials/key";
    for (value, field) in [
        (json!({"bearer": {"token": "t"}}), "bearer"),
        (json!({"header": {"name": "Authorization", "value": "t"}}), "header"),
        (json!({"basic": {"username": "u", "password": "p"}}), "basic"),
    ] {
        let reply = surface.put_json(key, &acme.owner, value.to_string()).await;
        let problem = reply.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains("`warehouse`")), "{problem}");
    }
    assert_eq!(versions(&surface).await, before);
    let other = json!({"header": {"name": "x-other", "value": "t"}}).to_string();
    surface.put_json(key, &acme.owner, other).await.expect(200);
}

#[tokio::test]
async fn a_replacement_raises_what_caches_go_by() {
    let (surface, acme) = world().await;
    patch(&surface, &acme.owner, named("crm")).await;
    let before = versions(&surface).await;
    let shown_before = surface.get(CRM, &acme.viewer).await.expect(200);
    let value = json!({"basic": {"username": "user", "password": "word"}}).to_string();
    let replaced = surface.put_json(CRM, &acme.owner, value).await.expect(200);
    assert_eq!((&replaced["kind"], &replaced["endpoints"]), (&json!("basic"), &json!(["warehouse"])));
    assert_eq!(replaced["createdAt"], shown_before["createdAt"]);
    assert!(replaced["updatedAt"].as_str() > shown_before["updatedAt"].as_str(), "{replaced}");
    let after = versions(&surface).await;
    assert_eq!(after, (before.0 + 1, before.1 + 1, before.2 + 1));
    let audit = surface.get("/api/tenants/acme/audit?action=credential.replaced", &acme.viewer).await;
    let entry = &audit.expect(200)["data"][0];
    assert_eq!(
        (&entry["target"]["name"], &entry["actor"]["name"]),
        (&json!("crm"), &json!("owner")),
        "{entry}"
    );
}

#[tokio::test]
async fn a_credential_stays_while_an_endpoint_names_it() {
    let (surface, acme) = world().await;
    patch(&surface, &acme.owner, named("crm")).await;
    surface.delete(CRM, &acme.owner).await.expect_problem(Code::CredentialInUse);
    patch(&surface, &acme.owner, json!({"credential": null})).await;
    assert_eq!(surface.delete(CRM, &acme.owner).await.status, 204);
    surface.get(CRM, &acme.owner).await.expect_problem(Code::NotFound);
    assert_eq!(surface.count("credentials").await, 0);
}

#[tokio::test]
async fn naming_replacing_and_deleting_at_once_end_in_one_order_or_the_other() {
    let (surface, acme) = world().await;
    for _ in 0..20 {
        let value = json!({"bearer": {"token": "t-2"}}).to_string();
        let named = named("crm").to_string();
        let (named, replaced, deleted) = tokio::join!(
            surface.patch(WAREHOUSE, &acme.owner, named),
            surface.put_json(CRM, &acme.owner, value),
            surface.delete(CRM, &acme.owner),
        );
        let statuses = [&named, &replaced, &deleted].map(|reply| reply.status.as_u16());
        match statuses {
            [200, 200, 409] => {
                patch(&surface, &acme.owner, json!({"credential": null})).await;
                assert_eq!(surface.delete(CRM, &acme.owner).await.status, 204);
            }
            [422, 200 | 404, 204] => {}
            other => panic!("{other:?}: {named:?} {replaced:?} {deleted:?}"),
        }
        create(&surface, &acme, "crm", &json!({"bearer": {"token": "t-1"}})).await;
    }
}

#[tokio::test]
async fn a_credential_is_given_for_a_url_and_not_for_whatever_it_is_by_then() {
    let (surface, acme) = world().await;
    let body = json!({"credential": "crm"});
    assert_eq!(refused(&surface, &acme.owner, body).await, "url");
    assert_eq!(patch(&surface, &acme.owner, named("crm")).await["credential"], "crm");
}
