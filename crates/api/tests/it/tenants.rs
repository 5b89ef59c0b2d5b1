//! Creating tenants.

use postrider_core::problem::Code;

use crate::surface::{BOOTSTRAP_TOKEN, Surface};

const PATH: &str = "/api/admin/tenants";

#[tokio::test]
async fn a_new_tenant_is_managed_with_the_token_that_came_with_it() {
    let surface = Surface::new().await;
    let created =
        surface.post_json(PATH, BOOTSTRAP_TOKEN, r#"{"id":"acme","name":"Acme GmbH"}"#).await.expect(201);
    assert_eq!((&created["id"], &created["name"]), (&"acme".into(), &"Acme GmbH".into()));
    let owner = created["ownerToken"].as_str().expect("a token");
    assert!(owner.starts_with("prm_"), "its prefix says what it opens");

    let application =
        surface.post_json("/api/tenants/acme/applications", owner, r#"{"id":"orders"}"#).await.expect(201);
    assert_eq!(application["id"], "orders");
    surface.post_json(PATH, owner, r#"{"id":"rival","name":"Rival"}"#).await.expect_problem(Code::Forbidden);
}

#[tokio::test]
async fn the_token_is_stored_as_a_hash_only() {
    let surface = Surface::new().await;
    let created =
        surface.post_json(PATH, BOOTSTRAP_TOKEN, r#"{"id":"acme","name":"Acme"}"#).await.expect(201);
    let owner = created["ownerToken"].as_str().expect("a token");
    let stored: String =
        sqlx::query_scalar("SELECT row_to_json(k)::text FROM postrider.management_keys AS k")
            .fetch_one(surface.database.pool())
            .await
            .expect("one key");
    let hexadecimal: String = owner.bytes().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
    assert!(!stored.contains(owner) && !stored.contains(&hexadecimal), "{stored}");
}

#[tokio::test]
async fn a_name_is_given_once() {
    let surface = Surface::new().await;
    surface.post_json(PATH, BOOTSTRAP_TOKEN, r#"{"id":"acme","name":"Acme"}"#).await.expect(201);
    let again = surface.post_json(PATH, BOOTSTRAP_TOKEN, r#"{"id":"acme","name":"Other"}"#).await;
    assert_eq!(again.expect_problem(Code::NameTaken)["errors"][0]["field"], "id");
    assert_eq!(surface.count("tenants").await, 1);
}

#[tokio::test]
async fn what_is_refused_stores_nothing_and_says_why() {
    let surface = Surface::new().await;
    let check = async |body: String, code: Code, field: Option<&str>| {
        let reply = surface.post_json(PATH, BOOTSTRAP_TOKEN, body.clone()).await;
        let problem = reply.expect_problem(code);
        assert_eq!(problem["errors"][0]["field"].as_str(), field, "{body}: {problem}");
    };
    let field = Code::InvalidField;
    check(String::new(), Code::InvalidJson, None).await;
    check("{".to_owned(), Code::InvalidJson, None).await;
    check("[]".to_owned(), field, None).await;
    check("{}".to_owned(), field, Some("id")).await;
    check(r#"{"id":"acme"}"#.to_owned(), field, Some("name")).await;
    check(r#"{"id":"acme","name":"Acme","admin":true}"#.to_owned(), field, Some("admin")).await;
    check(r#"{"id":1,"name":"Acme"}"#.to_owned(), field, Some("id")).await;
    for id in ["", "Acme", "a b", "../x", "-a", "a\\u0000b", "ä", &"a".repeat(65)] {
        check(format!(r#"{{"id":"{id}","name":"Acme"}}"#), field, Some("id")).await;
    }
    for name in ["", " Acme", "Acme\\n", "a\\u0000b", &"a".repeat(101)] {
        check(format!(r#"{{"id":"acme","name":"{name}"}}"#), field, Some("name")).await;
    }
    assert_eq!((surface.count("tenants").await, surface.count("management_keys").await), (0, 0));
}

#[tokio::test]
async fn a_tenant_whose_owners_lost_their_tokens_is_helped_by_the_operator() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let rescue = |token: String, tenant: &'static str| {
        let path = format!("/api/admin/tenants/{tenant}/owner-key");
        let surface = &surface;
        async move { surface.post_json(&path, &token, r#"{"id":"recovered"}"#).await }
    };
    rescue(acme.owner.clone(), "acme").await.expect_problem(Code::Forbidden);
    rescue(BOOTSTRAP_TOKEN.to_owned(), "nobody").await.expect_problem(Code::NotFound);
    let issued = rescue(BOOTSTRAP_TOKEN.to_owned(), "acme").await.expect(201);
    rescue(BOOTSTRAP_TOKEN.to_owned(), "acme").await.expect_problem(Code::NameTaken);
    let token = issued["ownerToken"].as_str().expect("a token");
    surface.post("/api/tenants/acme/keys/owner/revoke", token).await.expect(200);
    let log = surface.get("/api/tenants/acme/audit?action=key.issued", token).await.expect(200);
    assert_eq!(log["data"][0]["actor"]["kind"], "bootstrap", "{log}");
}
