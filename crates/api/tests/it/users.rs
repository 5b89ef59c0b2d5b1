//! Users: created and changed by owners; every change is true for the next request of each of their sessions.

use http::StatusCode;
use postrider_core::problem::Code;
use serde_json::{Value, json};

use crate::surface::{Surface, Tenant};

const PATH: &str = "/api/tenants/acme/users";
const PASSWORD: &str = "correct battery horse";

/// Creates a user of acme's; returns the path of it.
async fn create(surface: &Surface, acme: &Tenant, email: &str, role: &str) -> String {
    let body = json!({"email": email, "password": PASSWORD, "role": role}).to_string();
    let created = surface.post_json(PATH, &acme.owner, body).await.expect(201);
    format!("{PATH}/{}", created["id"].as_str().expect("an id"))
}

/// Begins a session.
async fn log_in(surface: &Surface, email: &str, password: &str) -> String {
    let begun = surface.log_in(email, password).await.expect(200);
    begun["token"].as_str().expect("a token").to_owned()
}

#[tokio::test]
async fn a_user_is_created_shown_and_deleted() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let body = json!({"email": "Ada@Example.com", "password": PASSWORD, "role": "viewer"}).to_string();
    let created = surface.post_json(PATH, &acme.owner, body).await.expect(201);
    assert_eq!((&created["email"], &created["role"]), (&"ada@example.com".into(), &"viewer".into()));
    assert_eq!(created["enabled"], true);
    assert!(!created.to_string().contains("argon2") && created.get("password").is_none(), "{created}");
    let path = format!("{PATH}/{}", created["id"].as_str().expect("an id"));
    assert_eq!(surface.get(&path, &acme.owner).await.expect(200), created);
    for patch in ["{}", r#"{"enabled":true,"role":"viewer"}"#] {
        assert_eq!(surface.patch(&path, &acme.owner, patch).await.expect(200), created, "nothing changes");
    }
    create(&surface, &acme, "bob@example.com", "developer").await;
    let listed = surface.get(&format!("{PATH}?limit=1"), &acme.owner).await.expect(200);
    assert_eq!(listed["data"][0]["email"], "bob@example.com");
    let cursor = listed["nextCursor"].as_str().expect("another page");
    let listed = surface.get(&format!("{PATH}?limit=1&cursor={cursor}"), &acme.owner).await.expect(200);
    assert_eq!((&listed["data"], &listed["nextCursor"]), (&json!([created]), &Value::Null));

    for token in [&acme.viewer, &acme.developer] {
        surface.get(PATH, token).await.expect_problem(Code::Forbidden);
        surface.get(&path, token).await.expect_problem(Code::Forbidden);
        surface.delete(&path, token).await.expect_problem(Code::Forbidden);
    }
    let deleted = surface.delete(&path, &acme.owner).await;
    assert_eq!((deleted.status, deleted.body.as_slice()), (StatusCode::NO_CONTENT, b"".as_slice()));
    surface.get(&path, &acme.owner).await.expect_problem(Code::NotFound);
    surface.delete(&path, &acme.owner).await.expect_problem(Code::NotFound);
    surface.patch(&path, &acme.owner, "{}").await.expect_problem(Code::NotFound);
}

#[tokio::test]
async fn a_user_of_another_tenant_is_unknown_and_stays_as_it_is() {
    let surface = Surface::new().await;
    let (acme, rival) = (surface.tenant("acme").await, surface.tenant("rival").await);
    let path = create(&surface, &acme, "ada@example.com", "developer").await.replace("/acme/", "/rival/");
    surface.get(&path, &rival.owner).await.expect_problem(Code::NotFound);
    for patch in ["{}", r#"{"role":"viewer"}"#, r#"{"password":"another long one"}"#] {
        surface.patch(&path, &rival.owner, patch).await.expect_problem(Code::NotFound);
    }
    surface.delete(&path, &rival.owner).await.expect_problem(Code::NotFound);
    assert_eq!(surface.get("/api/tenants/rival/users", &rival.owner).await.expect(200)["data"], json!([]));
    let token = log_in(&surface, "ada@example.com", PASSWORD).await;
    surface.post_json("/api/tenants/acme/applications", &token, r#"{"id":"billing"}"#).await.expect(201);
    surface.get("/api/tenants/rival/applications", &token).await.expect_problem(Code::NotFound);
}

/// An owner learns that an address is taken, since it cannot be given twice, but not by whom.
#[tokio::test]
async fn a_taken_address_is_refused_alike_whoever_has_it() {
    let surface = Surface::new().await;
    let (acme, rival) = (surface.tenant("acme").await, surface.tenant("rival").await);
    create(&surface, &acme, "ada@example.com", "viewer").await;
    let body = json!({"email": "ADA@example.com", "password": PASSWORD, "role": "owner"}).to_string();
    let own = surface.post_json(PATH, &acme.owner, body.clone()).await;
    let foreign = surface.post_json("/api/tenants/rival/users", &rival.owner, body).await;
    assert_eq!(own.expect_problem(Code::EmailTaken), foreign.expect_problem(Code::EmailTaken));
    assert!(!foreign.json().to_string().contains("acme"));
    assert_eq!(surface.count("users").await, 1);
}

#[tokio::test]
async fn what_is_refused_stores_nothing_and_repeats_no_password() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let path = create(&surface, &acme, "bob@example.com", "viewer").await;
    let long = "canary ".repeat(30);
    for (change, field) in [
        (json!({"email": "ada"}), "email"),
        (json!({"email": "ada@exämple.com"}), "email"),
        (json!({"email": null}), "email"),
        (json!({"role": "admin"}), "role"),
        (json!({"role": null}), "role"),
        (json!({"password": "canary"}), "password"),
        (json!({"password": long}), "password"),
        (json!({"password": "canary@example.com", "email": "canary@example.com"}), "password"),
        (json!({"password": "passwordpassword"}), "password"),
        (json!({"password": 123_456_789_012_u64}), "password"),
        (json!({"password": null}), "password"),
        (json!({"tenantId": "rival"}), "tenantId"),
    ] {
        let mut body = json!({"email": "ada@example.com", "password": PASSWORD, "role": "viewer"});
        for (name, value) in change.as_object().expect("members") {
            body[name] = value.clone();
        }
        let reply = surface.post_json(PATH, &acme.owner, body.to_string()).await;
        let problem = reply.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
        assert!(!problem.to_string().contains("canary"), "{problem}");
        if change.get("email").is_none() {
            let problem = surface.patch(&path, &acme.owner, change.to_string()).await;
            assert_eq!(problem.expect_problem(Code::InvalidField)["errors"][0]["field"], field, "{change}");
        }
    }
    surface
        .patch(&path, &acme.owner, r#"{"password":"bob@example.com"}"#)
        .await
        .expect_problem(Code::InvalidField);
    assert_eq!(surface.count("users").await, 1);
    log_in(&surface, "bob@example.com", PASSWORD).await;
}

#[tokio::test]
async fn what_changes_about_a_user_is_true_for_sessions_begun_before() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let path = create(&surface, &acme, "ada@example.com", "owner").await;
    let session = log_in(&surface, "ada@example.com", PASSWORD).await;
    surface.get(PATH, &session).await.expect(200);

    let changed = surface.patch(&path, &acme.owner, r#"{"role":"viewer"}"#).await.expect(200);
    assert_eq!(changed["role"], "viewer");
    surface.get(PATH, &session).await.expect_problem(Code::Forbidden);
    surface.get("/api/tenants/acme/applications", &session).await.expect(200);
    surface.patch(&path, &session, r#"{"role":"owner"}"#).await.expect_problem(Code::Forbidden);

    surface.patch(&path, &acme.owner, r#"{"enabled":false}"#).await.expect(200);
    surface.get("/api/tenants/acme/applications", &session).await.expect_problem(Code::Unauthorized);
    surface.log_in("ada@example.com", PASSWORD).await.expect_problem(Code::Unauthorized);
    surface.patch(&path, &acme.owner, r#"{"enabled":true}"#).await.expect(200);
    let stale = surface.get("/api/tenants/acme/applications", &session).await;
    stale.expect_problem(Code::Unauthorized);

    let session = log_in(&surface, "ada@example.com", PASSWORD).await;
    surface.patch(&path, &acme.owner, r#"{"password":"another long one"}"#).await.expect(200);
    surface.get("/api/tenants/acme/applications", &session).await.expect_problem(Code::Unauthorized);
    surface.log_in("ada@example.com", PASSWORD).await.expect_problem(Code::Unauthorized);
    let session = log_in(&surface, "ada@example.com", "another long one").await;
    surface.get("/api/tenants/acme/applications", &session).await.expect(200);

    surface.delete(&path, &acme.owner).await;
    surface.get("/api/tenants/acme/applications", &session).await.expect_problem(Code::Unauthorized);
}

#[tokio::test]
async fn the_last_owner_is_neither_lowered_nor_disabled_nor_deleted() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let path = create(&surface, &acme, "ada@example.com", "owner").await;
    let ada = log_in(&surface, "ada@example.com", PASSWORD).await;
    surface.post("/api/tenants/acme/keys/owner/revoke", &ada).await.expect(200);
    for patch in [r#"{"role":"developer"}"#, r#"{"enabled":false}"#] {
        surface.patch(&path, &ada, patch).await.expect_problem(Code::LastOwner);
    }
    surface.delete(&path, &ada).await.expect_problem(Code::LastOwner);
    surface.get(PATH, &ada).await.expect(200);
    let other = json!({"email": "bob@example.com", "password": PASSWORD, "role": "owner"}).to_string();
    surface.post_json(PATH, &ada, other).await.expect(201);
    assert_eq!(surface.delete(&path, &ada).await.status, StatusCode::NO_CONTENT);
    surface.get(PATH, &ada).await.expect_problem(Code::Unauthorized);
}

#[tokio::test]
async fn a_password_is_stored_as_a_hash_only() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    create(&surface, &acme, "ada@example.com", "owner").await;
    let stored: String = sqlx::query_scalar("SELECT row_to_json(u)::text FROM postrider.users AS u")
        .fetch_one(surface.database.pool())
        .await
        .expect("one user");
    assert!(stored.contains("$argon2id$v=19$m=19456,t=2,p=1$") && !stored.contains(PASSWORD), "{stored}");
}

#[tokio::test]
async fn changes_of_keys_and_users_are_remembered_by_the_names_of_what_changed() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let path = create(&surface, &acme, "ada@example.com", "viewer").await;
    surface.patch(&path, &acme.owner, r#"{"enabled":true,"role":"owner"}"#).await.expect(200);
    surface.patch(&path, &acme.owner, r#"{"password":"canary battery horse"}"#).await.expect(200);
    surface.patch(&path, &acme.owner, r#"{"role":"owner"}"#).await.expect(200);
    surface.delete(&path, &acme.owner).await;
    surface
        .post_json("/api/tenants/acme/keys", &acme.owner, r#"{"id":"ci","role":"viewer"}"#)
        .await
        .expect(201);
    for _ in 0..2 {
        surface.post("/api/tenants/acme/keys/ci/revoke", &acme.owner).await.expect(200);
    }
    let log = surface.get("/api/tenants/acme/audit", &acme.owner).await.expect(200);
    let entries = log["data"].as_array().expect("data");
    let told: Vec<_> =
        entries.iter().map(|entry| (&entry["action"], &entry["target"]["name"], &entry["fields"])).collect();
    let expected = [
        ("key.revoked", "ci", json!([])),
        ("key.issued", "ci", json!(["id", "role"])),
        ("user.deleted", "ada@example.com", json!([])),
        ("user.changed", "ada@example.com", json!(["password"])),
        ("user.changed", "ada@example.com", json!(["role"])),
        ("user.created", "ada@example.com", json!(["email", "password", "role"])),
    ];
    let expected = expected.map(|(action, name, fields)| (json!(action), json!(name), fields));
    let expected: Vec<_> = expected.iter().map(|(action, name, fields)| (action, name, fields)).collect();
    assert_eq!(told, expected);
    assert!(!log.to_string().contains("canary"), "{log}");
}
