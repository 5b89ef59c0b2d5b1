//! Managing credentials of approved vendors: what is stored, what is shown, and what is refused.

use std::{io, net::IpAddr, sync::Arc};

use postrider_core::{
    credential::{Credential, Kind},
    id::CredentialId,
    problem::Code,
    seal::{Context, Keyring, Purpose},
};
use postrider_store::{
    credentials::{self, NewValue},
    edit,
};
use postrider_testkit::guard;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::surface::{Surface, Tenant};

const PATH: &str = "/api/tenants/acme/credentials";
const CANARY: &str = "canary-93bd";

/// Creates a credential with this member beside its name.
pub(crate) async fn create(surface: &Surface, acme: &Tenant, name: &str, value: &Value) -> Value {
    let mut body = value.clone();
    body["id"] = name.into();
    surface.post_json(PATH, &acme.owner, body.to_string()).await.expect(201)
}

/// One value of each kind, with the mark in every place that nobody may see.
fn values() -> [(&'static str, Value); 4] {
    [
        ("bearer", json!({"bearer": {"token": CANARY}})),
        ("basic", json!({"basic": {"username": CANARY, "password": CANARY}})),
        ("header", json!({"header": {"name": "X-Api-Key", "value": CANARY}})),
        (
            "oauth2_client_credentials",
            json!({"oauth2ClientCredentials": {
                "tokenUrl": "https://login.example.com/canary-93bd",
                "clientId": CANARY,
                "clientSecret": CANARY,
                "scope": "canary-93bd read",
                "audience": CANARY,
                "clientAuthentication": "body",
            }}),
        ),
    ]
}

#[tokio::test]
async fn a_credential_of_each_kind_is_shown_without_its_value() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    for (kind, value) in values() {
        let name = kind.replace('_', "-");
        let created = create(&surface, &acme, &name, &value).await;
        let shown = surface.get(&format!("{PATH}/{name}"), &acme.viewer).await.expect(200);
        assert_eq!(shown, created);
        let members: Vec<&String> = shown.as_object().expect("an object").keys().collect();
        assert_eq!(members, ["createdAt", "endpointCount", "endpoints", "id", "kind", "updatedAt"]);
        assert_eq!((&shown["id"], &shown["kind"]), (&json!(name), &json!(kind)));
        assert_eq!((&shown["endpoints"], &shown["endpointCount"]), (&json!([]), &json!(0)));
    }
    let listed = surface.get(PATH, &acme.viewer).await.expect(200);
    let kinds: Vec<&Value> =
        listed["data"].as_array().expect("data").iter().map(|one| &one["kind"]).collect();
    assert_eq!(kinds, ["oauth2_client_credentials", "header", "basic", "bearer"], "newest first");
    let audit = surface.get("/api/tenants/acme/audit", &acme.viewer).await.expect(200);
    assert_eq!(audit["data"].as_array().map(Vec::len), Some(4), "{audit}");
    for text in [listed.to_string(), audit.to_string()] {
        assert!(!text.contains("canary"), "{text}");
    }
}

#[tokio::test]
async fn a_value_is_stored_sealed_for_its_row_and_in_no_other_column() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let keyring = Keyring::new([1; 32], None).expect("keyring");
    for (kind, value) in values() {
        create(&surface, &acme, &kind.replace('_', "-"), &value).await;
        let (row, sealed): (Uuid, Vec<u8>) =
            sqlx::query_as("SELECT credential_id, sealed_value FROM postrider.credentials WHERE kind = $1")
                .bind(kind)
                .fetch_one(surface.database.pool())
                .await
                .expect("the credential");
        let opened =
            |tenant, row| keyring.open(&Context { purpose: Purpose::Credential, tenant, row }, &sealed);
        let stored = opened(acme.id, row).expect("it opens");
        assert_eq!(Credential::from_stored(&stored).expect("a credential").kind().as_str(), kind);
        assert!(opened(acme.id, Uuid::nil()).is_err());
    }
    let plain: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM postrider.credentials AS c WHERE c::text LIKE '%' || $1 || '%'
             OR position(convert_to($1, 'UTF8') IN c.sealed_value) > 0",
    )
    .bind(CANARY)
    .fetch_one(surface.database.pool())
    .await
    .expect("count");
    assert_eq!(plain, 0);
}

#[tokio::test]
async fn what_is_refused_names_its_member_and_repeats_nothing() {
    let names: guard::Names = |name: &str| -> io::Result<Vec<IpAddr>> {
        Ok(vec![IpAddr::from(if name == "inside.example.com" { [10, 0, 0, 7] } else { [93, 184, 215, 14] })])
    };
    let surface =
        Surface::with(|settings| settings.check_origin = Arc::new(guard::check_origin(names))).await;
    let acme = surface.tenant("acme").await;
    let oauth2 = |name: &str, value: Value| {
        let mut client =
            json!({"tokenUrl": "https://login.example.com/", "clientId": "a", "clientSecret": "b"});
        client[name] = value;
        json!({"oauth2ClientCredentials": client})
    };
    let at = |url: &str| oauth2("tokenUrl", json!(url));
    for (body, field) in [
        (json!({}), "bearer"),
        (json!({"bearer": {"token": "a"}, "basic": {"username": "a", "password": "b"}}), "bearer"),
        (json!({"bearer": null}), "bearer"),
        (json!({"bearer": ["canary-93bd"]}), "bearer"),
        (json!({"bearer": {}}), "bearer.token"),
        (json!({"bearer": {"token": 7}}), "bearer.token"),
        (json!({"bearer": {"token": "canary-93bd b"}}), "bearer.token"),
        (json!({"bearer": {"token": "a", "more": "canary-93bd"}}), "bearer.more"),
        (json!({"basic": {"username": "canary-93bd:", "password": "b"}}), "basic.username"),
        (json!({"basic": {"username": "a", "password": "canary-93bd\r\n"}}), "basic.password"),
        (json!({"header": {"name": "Host", "value": "canary-93bd"}}), "header.name"),
        (json!({"header": {"name": "content-length", "value": "canary-93bd"}}), "header.name"),
        (json!({"header": {"name": "Webhook-Signature", "value": "canary-93bd"}}), "header.name"),
        (json!({"header": {"name": "x-key", "value": "canary-93bd\r\nHost: x"}}), "header.value"),
        (oauth2("clientId", json!("")), "oauth2ClientCredentials.clientId"),
        (oauth2("clientSecret", json!("canary-93bd\n")), "oauth2ClientCredentials.clientSecret"),
        (oauth2("scope", json!("canary-93bd  b")), "oauth2ClientCredentials.scope"),
        (oauth2("scope", json!(null)), "oauth2ClientCredentials.scope"),
        (oauth2("audience", json!("canary-93bd b")), "oauth2ClientCredentials.audience"),
        (
            oauth2("clientAuthentication", json!("canary-93bd")),
            "oauth2ClientCredentials.clientAuthentication",
        ),
        (at("canary-93bd"), "oauth2ClientCredentials.tokenUrl"),
        (at("http://login.example.com/canary-93bd"), "oauth2ClientCredentials.tokenUrl"),
        (at("https://login.example.com/?canary-93bd"), "oauth2ClientCredentials.tokenUrl"),
        (at("https://canary-93bd@login.example.com/"), "oauth2ClientCredentials.tokenUrl"),
        (at("https://169.254.169.254/canary-93bd"), "oauth2ClientCredentials.tokenUrl"),
        (at("https://[::ffff:127.0.0.1]/canary-93bd"), "oauth2ClientCredentials.tokenUrl"),
        (at("https://0x7f.1/canary-93bd"), "oauth2ClientCredentials.tokenUrl"),
        (at("https://localhost/canary-93bd"), "oauth2ClientCredentials.tokenUrl"),
        (at("https://inside.example.com/canary-93bd"), "oauth2ClientCredentials.tokenUrl"),
    ] {
        let mut with_id = body.clone();
        with_id["id"] = "crm".into();
        let reply = surface.post_json(PATH, &acme.owner, with_id.to_string()).await;
        let problem = reply.expect_problem(Code::InvalidField);
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
        assert!(!problem.to_string().contains("canary"), "{problem}");
        assert!(!problem.to_string().contains("10.0.0.7"), "{problem}");
    }
    assert_eq!(surface.count("credentials").await, 0);
}

#[tokio::test]
async fn only_owners_write_and_names_are_a_tenants_own() {
    let surface = Surface::new().await;
    let (acme, rival) = (surface.tenant("acme").await, surface.tenant("rival").await);
    let [(_, value), ..] = values();
    create(&surface, &acme, "crm", &value).await;
    let mut body = value.clone();
    body["id"] = "crm".into();
    for token in [&acme.developer, &acme.viewer, &acme.publish] {
        surface.post_json(PATH, token, body.to_string()).await.expect_problem(Code::Forbidden);
        let path = format!("{PATH}/crm");
        surface.put_json(&path, token, value.to_string()).await.expect_problem(Code::Forbidden);
        surface.delete(&path, token).await.expect_problem(Code::Forbidden);
    }
    surface.post_json(PATH, &acme.owner, body.to_string()).await.expect_problem(Code::NameTaken);
    surface.post_json("/api/tenants/rival/credentials", &rival.owner, body.to_string()).await.expect(201);
    for path in [format!("{PATH}/crm"), format!("{PATH}/none")] {
        surface.get(&path, &rival.owner).await.expect_problem(Code::NotFound);
        surface.put_json(&path, &rival.owner, value.to_string()).await.expect_problem(Code::NotFound);
        surface.delete(&path, &rival.owner).await.expect_problem(Code::NotFound);
    }
    let none = format!("{PATH}/none");
    surface.get(&none, &acme.owner).await.expect_problem(Code::NotFound);
    surface.put_json(&none, &acme.owner, value.to_string()).await.expect_problem(Code::NotFound);
    surface.delete(&none, &acme.owner).await.expect_problem(Code::NotFound);
}

#[tokio::test]
async fn a_tenant_has_so_many_credentials_and_no_more() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    sqlx::query(
        "INSERT INTO postrider.credentials (tenant_id, credential_id, name, kind, sealed_value)
         SELECT $1, gen_random_uuid(), 'c-' || n, 'bearer', '' FROM generate_series(1, 499) AS n",
    )
    .bind(acme.id.as_uuid())
    .execute(surface.database.pool())
    .await
    .expect("rows");
    let body = |name: &str| json!({"id": name, "bearer": {"token": "a"}}).to_string();
    // Somebody else is about to take the last place.
    let mut other = edit::begin(surface.database.pool()).await.expect("transaction");
    let value = NewValue { kind: Kind::Bearer, sealed_value: b"sealed" };
    let (id, name) = (CredentialId::from_uuid(Uuid::now_v7()), "one".parse().expect("name"));
    credentials::create(&mut other, acme.id, id, &name, value).await.expect("there is room");
    let (reply, ()) = tokio::join!(surface.post_json(PATH, &acme.owner, body("two")), async {
        let waits_or_is_through = "SELECT (SELECT count(*) FROM pg_locks WHERE NOT granted)
            + (SELECT count(*) FROM postrider.credentials) - 499";
        while sqlx::query_scalar::<_, i64>(waits_or_is_through)
            .fetch_one(surface.database.pool())
            .await
            .expect("count")
            == 0
        {}
        other.commit().await.expect("commit");
    });
    reply.expect_problem(Code::LimitReached);
    surface.post_json(PATH, &acme.owner, body("three")).await.expect_problem(Code::LimitReached);
    assert_eq!(surface.count("credentials").await, 500);
}
