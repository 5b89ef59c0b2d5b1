//! Management keys: issued, listed and revoked by owners, of whom one always stays.

use postrider_api::Settings;
use postrider_core::problem::Code;
use serde_json::{Value, json};

use crate::surface::{Surface, Tenant};

const PATH: &str = "/api/tenants/acme/keys";

/// Issues a key; returns its token.
async fn issue(surface: &Surface, owner: &str, id: &str, role: &str) -> String {
    let body = json!({"id": id, "role": role}).to_string();
    let issued = surface.post_json(PATH, owner, body).await.expect(201);
    issued["token"].as_str().expect("a token").to_owned()
}

async fn revoke(surface: &Surface, owner: &str, id: &str) -> Value {
    surface.post(&format!("{PATH}/{id}/revoke"), owner).await.expect(200)
}

async fn acme() -> (Surface, Tenant) {
    acme_with(|_settings| ()).await
}

async fn acme_with(change: impl FnOnce(&mut Settings)) -> (Surface, Tenant) {
    let surface = Surface::with(change).await;
    let acme = surface.tenant("acme").await;
    (surface, acme)
}

#[tokio::test]
async fn a_key_opens_what_its_role_may_until_it_is_revoked() {
    let (surface, acme) = acme().await;
    let body = r#"{"id":"ci","role":"developer"}"#;
    let issued = surface.post_json(PATH, &acme.owner, body).await.expect(201);
    assert_eq!(
        (&issued["id"], &issued["role"], &issued["revokedAt"]),
        (&"ci".into(), &"developer".into(), &Value::Null)
    );
    let token = issued["token"].as_str().expect("a token");
    assert!(token.starts_with("prm_"), "{token}");

    surface.post_json("/api/tenants/acme/applications", token, r#"{"id":"billing"}"#).await.expect(201);
    surface.get(PATH, token).await.expect_problem(Code::Forbidden);
    surface.post_json(PATH, token, r#"{"id":"x","role":"owner"}"#).await.expect_problem(Code::Forbidden);
    let listed = surface.get(PATH, &acme.owner).await.expect(200);
    let ids: Vec<_> = listed["data"].as_array().expect("data").iter().map(|key| &key["id"]).collect();
    assert_eq!(ids, ["ci", "viewer", "developer", "owner"]);
    assert!(!listed.to_string().contains("prm_") && listed["data"][0].get("token").is_none(), "{listed}");

    let revoked = revoke(&surface, &acme.owner, "ci").await;
    assert!(revoked["revokedAt"].is_string() && revoked.get("token").is_none(), "{revoked}");
    surface.get("/api/tenants/acme/applications", token).await.expect_problem(Code::Unauthorized);
    assert_eq!(revoke(&surface, &acme.owner, "ci").await, revoked, "again, it changes nothing");
    let listed = surface.get(&format!("{PATH}?limit=1"), &acme.owner).await.expect(200);
    assert_eq!(listed["data"], json!([revoked]));
    assert!(listed["nextCursor"].is_string());
}

#[tokio::test]
async fn what_is_refused_issues_nothing_and_says_why() {
    let (surface, acme) = acme().await;
    let check = async |body: &str, code: Code, field: &str| {
        let problem = surface.post_json(PATH, &acme.owner, body.to_owned()).await.expect_problem(code);
        assert_eq!(problem["errors"][0]["field"], field, "{body}: {problem}");
    };
    revoke(&surface, &acme.owner, "viewer").await;
    check(r#"{"id":"developer","role":"viewer"}"#, Code::NameTaken, "id").await;
    check(r#"{"id":"viewer","role":"viewer"}"#, Code::NameTaken, "id").await;
    check(r#"{"id":"CI","role":"viewer"}"#, Code::InvalidField, "id").await;
    check(r#"{"id":"ci","role":"admin"}"#, Code::InvalidField, "role").await;
    check(r#"{"id":"ci"}"#, Code::InvalidField, "role").await;
    check(r#"{"id":"ci","role":"viewer","tenant":"rival"}"#, Code::InvalidField, "tenant").await;
    for name in ["unknown", "Not-a-name", "prm_0"] {
        let reply = surface.post(&format!("{PATH}/{name}/revoke"), &acme.owner).await;
        reply.expect_problem(Code::NotFound);
    }
    assert_eq!(surface.count("management_keys").await, 3);
}

#[tokio::test]
async fn a_tenant_has_a_bounded_number_of_keys() {
    let (surface, acme) = acme().await;
    for number in 3..100 {
        issue(&surface, &acme.owner, &format!("key{number}"), "viewer").await;
    }
    let body = r#"{"id":"one-more","role":"viewer"}"#;
    surface.post_json(PATH, &acme.owner, body).await.expect_problem(Code::LimitReached);
    revoke(&surface, &acme.owner, "key50").await;
    surface.post_json(PATH, &acme.owner, body).await.expect(201);
}

#[tokio::test]
async fn the_last_owner_stays() {
    let (surface, acme) = acme().await;
    let refused = surface.post(&format!("{PATH}/owner/revoke"), &acme.owner).await;
    refused.expect_problem(Code::LastOwner);
    surface.get(PATH, &acme.owner).await.expect(200);

    let second = issue(&surface, &acme.owner, "second", "owner").await;
    revoke(&surface, &acme.owner, "owner").await;
    surface.get(PATH, &acme.owner).await.expect_problem(Code::Unauthorized);
    surface.post(&format!("{PATH}/second/revoke"), &second).await.expect_problem(Code::LastOwner);
    let user = r#"{"email":"ada@example.com","password":"a long enough one","role":"owner"}"#;
    surface.post_json("/api/tenants/acme/users", &second, user).await.expect(201);
    revoke(&surface, &second, "second").await;
}

#[tokio::test]
async fn where_nobody_can_log_in_a_user_is_no_owner() {
    let (surface, acme) = acme_with(|settings| settings.sessions = None).await;
    let user = r#"{"email":"ada@example.com","password":"a long enough one","role":"owner"}"#;
    surface.post_json("/api/tenants/acme/users", &acme.owner, user).await.expect(201);
    surface.post(&format!("{PATH}/owner/revoke"), &acme.owner).await.expect_problem(Code::LastOwner);
}

#[tokio::test]
async fn two_owners_who_revoke_each_other_at_once_do_not_both_go() {
    let (surface, acme) = acme().await;
    let mut owner = acme.owner.clone();
    let mut name = "owner".to_owned();
    for round in 0..8 {
        let other_name = format!("owner{round}");
        let other = issue(&surface, &owner, &other_name, "owner").await;
        let (one, two) = (format!("{PATH}/{name}/revoke"), format!("{PATH}/{other_name}/revoke"));
        let (one, two) = tokio::join!(surface.post(&one, &other), surface.post(&two, &owner));
        // Whoever comes second is refused for his own revocation, or for being the last.
        let one_went = one.status.is_success();
        assert_ne!(one_went, two.status.is_success(), "{one:?} {two:?}");
        if one_went {
            (owner, name) = (other, other_name);
        }
        surface.get(PATH, &owner).await.expect(200);
    }
}
