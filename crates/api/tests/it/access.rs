//! Who may call what: every operation of the OpenAPI document × every kind of credential × own and foreign tenant.

use axum::body::Body;
use http::{Method, Request, header};
use postrider_core::problem::Code;
use serde_json::Value;

use crate::{
    reply::Reply,
    surface::{BOOTSTRAP_TOKEN, METRICS_TOKEN, Surface, Tenant, request},
};

/// One operation, as the document describes it.
struct Operation {
    method: Method,
    path: String,
    /// The credential it takes, and the least role.
    security: Option<(String, Option<String>)>,
}

/// All operations, with the path parameters of a tenant filled in.
fn operations(tenant: &str) -> Vec<Operation> {
    let document: Value = serde_json::from_str(&postrider_api::document()).expect("JSON");
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("path item") {
            let security = operation.get("security").map(|security| {
                let (scheme, roles) =
                    security[0].as_object().and_then(|all| all.iter().next()).expect("a scheme");
                (scheme.clone(), roles[0].as_str().map(str::to_owned))
            });
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("method");
            operations.push(Operation { method, path: fill(path, tenant), security });
        }
    }
    assert!(operations.len() >= 14);
    operations
}

fn fill(path: &str, tenant: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "{tenant}" => tenant,
        "{application}" => "orders",
        "{endpoint}" => "warehouse",
        "{subscription}" => "orders-to-warehouse",
        "{type}" => "order.created",
        "{event}" => "evt_0192f3a0000070008000000000010000",
        // Nobody has them: what is tried on them changes nobody's credentials.
        "{key}" | "{credential}" => "nobody",
        "{user}" => "usr_0192f3a0000070008000000000010000",
        "{delivery}" => "dlv_0192f3a0000070008000000000010001",
        "{replay}" => "rpl_0192f3a0000070008000000000030000",
        parameter if parameter.starts_with('{') => panic!("say what {parameter} is"),
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

impl Operation {
    async fn call(&self, surface: &Surface, token: &str) -> Reply {
        surface
            .call(request(self.method.clone(), &self.path, token).body(Body::empty()).expect("request"))
            .await
    }

    fn role(&self) -> &str {
        self.security.as_ref().and_then(|(_, role)| role.as_deref()).unwrap_or_default()
    }
}

/// The tenant's credentials, each with what it is. A session opens what a management key of its user's role does.
async fn credentials(surface: &Surface, tenant: &Tenant) -> Vec<(&'static str, &'static str, String)> {
    let keys = [
        ("bootstrapToken", "", BOOTSTRAP_TOKEN),
        ("metricsToken", "", METRICS_TOKEN),
        ("publishToken", "", &tenant.publish),
        ("managementToken", "viewer", &tenant.viewer),
        ("managementToken", "developer", &tenant.developer),
        ("managementToken", "owner", &tenant.owner),
    ];
    let keys = keys.into_iter().map(|(kind, role, token)| (kind, role, token.to_owned()));
    let sessions = surface.sessions(tenant).await;
    keys.chain(sessions.into_iter().map(|(role, token)| ("managementToken", role.as_str(), token))).collect()
}

fn rank(role: &str) -> usize {
    ["viewer", "developer", "owner"].iter().position(|known| *known == role).expect("a role")
}

#[tokio::test]
async fn each_operation_takes_the_credential_it_names_and_no_other() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let credentials = credentials(&surface, &acme).await;
    let mut combinations = 0;
    for operation in operations("acme") {
        let Some((scheme, _)) = &operation.security else { continue };
        for (kind, role, token) in &credentials {
            combinations += 1;
            let reply = operation.call(&surface, token).await;
            let fits = kind == scheme && (*kind != "managementToken" || rank(role) >= rank(operation.role()));
            let named = format!("{} {} as {kind} {role}: {reply:?}", operation.method, operation.path);
            if fits {
                // Let in; an empty body or an unknown id is another matter.
                assert!(!matches!(reply.status.as_u16(), 401 | 403 | 405 | 500..), "{named}");
            } else {
                assert_eq!(reply.status.as_u16(), 403, "{named}");
                reply.expect_problem(Code::Forbidden);
            }
        }
    }
    println!("{combinations} combinations of operation and credential within a tenant");
    assert!(combinations >= 9 * 40, "{combinations}");
}

#[tokio::test]
async fn without_a_known_credential_there_is_only_a_challenge() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    let (_, session) = surface.sessions(&acme).await.remove(0);
    let stranger = {
        let mut text = acme.owner.clone();
        text.replace_range(10..11, if &text[10..11] == "x" { "y" } else { "x" });
        text
    };
    // Well formed, but known to nobody.
    let other = Surface::new().await.tenant("acme").await.owner;
    let headers: &[&[String]] = &[
        &[],
        &["Bearer".to_owned()],
        &["Bearer ".to_owned()],
        &[format!("Bearer {stranger}")],
        &[format!("Bearer {other}")],
        &[format!("Bearer {BOOTSTRAP_TOKEN}x")],
        &[format!("Bearer {}", &session[..session.len() - 1])],
        &[format!("Bearer {session}"), format!("Bearer {session}")],
        &[format!("Basic {}", acme.owner)],
        std::slice::from_ref(&acme.owner),
        &[format!("Bearer {}", acme.owner), format!("Bearer {}", acme.owner)],
    ];
    for operation in operations("acme") {
        for values in headers {
            let mut request = Request::builder().method(&operation.method).uri(&operation.path);
            for value in *values {
                request = request.header(header::AUTHORIZATION, value);
            }
            let reply = surface.call(request.body(Body::empty()).expect("request")).await;
            if operation.security.is_some() {
                reply.expect_problem(Code::Unauthorized);
                assert_eq!(reply.header(&header::WWW_AUTHENTICATE), "Bearer realm=\"postrider\"");
            } else {
                // What begins with a password takes it in the body, which is missing here.
                let (is_login, status) = (operation.path.starts_with("/api/auth/"), reply.status);
                let is_fine = if is_login { status.as_u16() == 415 } else { status.is_success() };
                assert!(is_fine, "{} {}: {reply:?}", operation.method, operation.path);
            }
        }
    }
}

#[tokio::test]
async fn a_token_under_another_scheme_is_told_which_to_use() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    for value in [format!("Basic {}", acme.owner), acme.owner.clone()] {
        let request = Request::get("/api/tenants/acme/events").header(header::AUTHORIZATION, value);
        let reply = surface.call(request.body(Body::empty()).expect("request")).await;
        let problem = reply.expect_problem(Code::Unauthorized);
        assert!(
            problem["detail"].as_str().expect("text").contains("the word `Bearer` before it"),
            "{problem}"
        );
    }
}

#[tokio::test]
async fn another_tenant_is_as_unknown_as_one_that_does_not_exist() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    surface.tenant("rival").await;
    let credentials = credentials(&surface, &acme).await;
    let mut combinations = 0;
    for tenant in ["rival", "nobody", "ACME", "acme%2F"] {
        for operation in operations(tenant) {
            let Some((scheme, _)) = &operation.security else { continue };
            if !operation.path.starts_with(&format!("/api/tenants/{tenant}/")) {
                continue;
            }
            for (kind, _, token) in &credentials {
                // What fits nowhere is told so; what would fit at home finds nothing here.
                let expected = if kind == scheme { Code::NotFound } else { Code::Forbidden };
                operation.call(&surface, token).await.expect_problem(expected);
                combinations += 1;
            }
        }
    }
    println!("{combinations} combinations of operation, credential and foreign tenant");
    assert!(combinations >= 9 * 35 * 4, "{combinations}");
}

#[tokio::test]
async fn an_application_publishes_as_itself_only() {
    let surface = Surface::new().await;
    let acme = surface.tenant("acme").await;
    for application in ["billing", "postrider-system"] {
        let path = format!("/api/tenants/acme/applications/{application}/events/order.created");
        surface.post_json(&path, &acme.publish, "1").await.expect_problem(Code::NotFound);
    }
}

/// Ids of another tenant open nothing, on every operation that takes one.
#[tokio::test]
async fn foreign_ids_name_nothing() {
    let surface = Surface::new().await;
    let (acme, rival) = (surface.tenant("acme").await, surface.tenant("rival").await);
    let path = "/api/tenants/rival/applications/orders/events/order.created";
    let event =
        surface.post_json(path, &rival.publish, "1").await.expect(202)["id"].as_str().expect("id").to_owned();
    let delivery = surface.get("/api/tenants/rival/deliveries", &rival.viewer).await.expect(200);
    let delivery = delivery["data"][0]["id"].as_str().expect("id").to_owned();
    let mut tried = 0;
    for operation in operations("acme") {
        let path = operation.path.replace("evt_0192f3a0000070008000000000010000", &event);
        let path = path.replace("dlv_0192f3a0000070008000000000010001", &delivery);
        if path == operation.path {
            continue;
        }
        let operation = Operation { path, ..operation };
        operation.call(&surface, &acme.owner).await.expect_problem(Code::NotFound);
        // Whose it is gets further.
        let operation = Operation { path: operation.path.replace("/acme/", "/rival/"), ..operation };
        let own = operation.call(&surface, &rival.owner).await;
        assert_ne!(own.status.as_u16(), 404, "{} {}", operation.method, operation.path);
        tried += 1;
    }
    assert!(tried >= 5);
}

/// The same for ids that only an owner of the other tenant knows: of its users and of its replays.
#[tokio::test]
async fn foreign_users_and_replays_name_nothing() {
    let surface = Surface::new().await;
    let (acme, rival) = (surface.tenant("acme").await, surface.tenant("rival").await);
    surface.sessions(&rival).await;
    let users = surface.get("/api/tenants/rival/users", &rival.owner).await.expect(200);
    let user = users["data"][0]["id"].as_str().expect("id").to_owned();
    let filter = r#"{"filter": {}}"#;
    let replay = surface.post_json("/api/tenants/rival/replays", &rival.developer, filter).await.expect(201);
    let replay = replay["id"].as_str().expect("id").to_owned();
    let (rows, mut tried) = (everybody(&surface).await, 0);
    for operation in operations("acme") {
        let path = operation.path.replace("usr_0192f3a0000070008000000000010000", &user);
        let path = path.replace("rpl_0192f3a0000070008000000000030000", &replay);
        if path == operation.path {
            continue;
        }
        let operation = Operation { path, ..operation };
        let request = request(operation.method.clone(), &operation.path, &acme.owner);
        // Whole, so that a path that names nothing is all that is wrong.
        let request =
            request.header(header::CONTENT_TYPE, "application/json").body(r#"{"enabled":false}"#.into());
        surface.call(request.expect("request")).await.expect_problem(Code::NotFound);
        tried += 1;
    }
    assert!(tried >= 6, "{tried}");
    assert_eq!(everybody(&surface).await, rows, "and nothing of it was changed");
}

/// All users and replays, whosever they are.
async fn everybody(surface: &Surface) -> String {
    let rows = "SELECT string_agg(row::text, ' ' ORDER BY row::text) FROM (
                    SELECT to_jsonb(u) AS row FROM postrider.users u
                    UNION ALL SELECT to_jsonb(r) FROM postrider.replays r) AS rows";
    sqlx::query_scalar(rows).fetch_one(surface.database.pool()).await.expect("rows")
}
