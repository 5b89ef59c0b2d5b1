//! The surface over a database of its own, and tenants to call it as.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use http::{HeaderValue, Method, Request, header};
use postrider_api::{Build, Settings, State, router};
use postrider_core::{
    address,
    destination::UrlPolicy,
    id::TenantId,
    name::Name,
    password::Hash,
    pepper::{Hashes, Peppers},
    role::Role,
    seal::Keyring,
    session,
    signature::Algorithm,
    token::{Kind, Pepper, Token},
};
use postrider_store::{
    applications::{self, NewApplication},
    edit,
    endpoints::{self, NewEndpoint},
    ingest::Entrance,
    instances::Role as Part,
    management_keys::{self, NewManagementKey},
    routing::Cache,
    signing_keys::NewSigningKey,
    subscriptions::{self, NewSubscription},
    tenants::{self, NewTenant},
    users::{self, NewUser},
};
use postrider_testkit::{
    guard,
    postgres::Database,
    running::{Options, Running, loopback_http},
};
use sqlx::{PgPool, PgTransaction};
use time::OffsetDateTime;
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt as _;
use uuid::Uuid;

use crate::reply::Reply;

pub(crate) const BOOTSTRAP_TOKEN: &str = "a-bootstrap-token-of-at-least-32-characters";
pub(crate) const METRICS_TOKEN: &str = "another-token-for-the-metrics-of-32-characters";

/// What sessions are signed with.
pub(crate) const SESSION_SECRET: &[u8] = b"a-session-secret-of-at-least-32-bytes";

/// What every request says of whom it is for.
const HOST: HeaderValue = HeaderValue::from_static("postrider.example");

/// A surface and the engine that stores its events, as in a process of the role `api`.
pub(crate) struct Surface {
    pub(crate) router: Router,
    peppers: Peppers,
    now: Arc<dyn Fn() -> OffsetDateTime + Send + Sync>,
    _engine: Running,
    _apart: Apart,
    pub(crate) database: Database,
}

/// A runtime of the engine's own: it neither stands still with the test's time, nor while a dropped database waits for
/// the engine's connections to end.
struct Apart(Option<Runtime>);

/// A tenant with one application (`orders`), one endpoint (`warehouse`) and a subscription for `order.*`.
pub(crate) struct Tenant {
    pub(crate) id: TenantId,
    pub(crate) owner: String,
    pub(crate) developer: String,
    pub(crate) viewer: String,
    pub(crate) publish: String,
}

impl Surface {
    pub(crate) async fn new() -> Self {
        Self::with(|_settings| ()).await
    }

    /// A surface with other settings than usual.
    pub(crate) async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let database = Database::fresh().await;
        let pool = database.serving_pool().clone();
        let options = Options { role: Part::Api, ..Options::default() };
        let apart = Apart::new();
        let engine = apart.run(|| Running::start_with(&database, loopback_http(), options));
        let mut settings = settings(pool, engine.entrance());
        settings.routing = Arc::clone(engine.routing());
        change(&mut settings);
        let (peppers, now) = (settings.peppers.clone(), Arc::clone(&settings.now));
        Self { router: router(State::from(settings)), peppers, now, _engine: engine, _apart: apart, database }
    }

    pub(crate) async fn call(&self, mut request: Request<Body>) -> Reply {
        request.headers_mut().entry(header::HOST).or_insert(HOST);
        Reply::read(self.router.clone().oneshot(request).await.expect("infallible")).await
    }

    pub(crate) async fn get(&self, path: &str, token: &str) -> Reply {
        self.call(request(Method::GET, path, token).body(Body::empty()).expect("request")).await
    }

    /// A POST without a body.
    pub(crate) async fn post(&self, path: &str, token: &str) -> Reply {
        self.call(request(Method::POST, path, token).body(Body::empty()).expect("request")).await
    }

    pub(crate) async fn post_json(&self, path: &str, token: &str, body: impl Into<Body>) -> Reply {
        let request = request(Method::POST, path, token).header(header::CONTENT_TYPE, "application/json");
        self.call(request.body(body.into()).expect("request")).await
    }

    /// Logs in, without any credential but this.
    pub(crate) async fn log_in(&self, email: &str, password: &str) -> Reply {
        let body = serde_json::json!({"email": email, "password": password}).to_string();
        let request = Request::post("/api/auth/login").header(header::CONTENT_TYPE, "application/json");
        self.call(request.body(body.into()).expect("request")).await
    }

    pub(crate) async fn put_json(&self, path: &str, token: &str, body: impl Into<Body>) -> Reply {
        let request = request(Method::PUT, path, token).header(header::CONTENT_TYPE, "application/json");
        self.call(request.body(body.into()).expect("request")).await
    }

    /// A merge patch.
    pub(crate) async fn patch(&self, path: &str, token: &str, body: impl Into<Body>) -> Reply {
        let request =
            request(Method::PATCH, path, token).header(header::CONTENT_TYPE, "application/merge-patch+json");
        self.call(request.body(body.into()).expect("request")).await
    }

    pub(crate) async fn delete(&self, path: &str, token: &str) -> Reply {
        self.call(request(Method::DELETE, path, token).body(Body::empty()).expect("request")).await
    }

    /// How many rows a table has.
    pub(crate) async fn count(&self, table: &str) -> i64 {
        let count = format!("SELECT count(*) FROM postrider.{table}");
        let count = sqlx::query_scalar(sqlx::AssertSqlSafe(count));
        count.fetch_one(self.database.pool()).await.expect("count")
    }

    /// Makes a tenant of this name.
    pub(crate) async fn tenant(&self, name: &str) -> Tenant {
        let tenant_id = TenantId::from_uuid(Uuid::now_v7());
        let mint = |kind| {
            let mut random = [0; 32];
            random[..16].copy_from_slice(Uuid::new_v4().as_bytes());
            let token = Token::mint(kind, random);
            (token.reveal().to_string(), self.peppers.hashes(&token))
        };
        let (owner, owner_hash) = mint(Kind::Management);
        let (developer, developer_hash) = mint(Kind::Management);
        let (viewer, viewer_hash) = mint(Kind::Management);
        let (publish, publish_hash) = mint(Kind::Publish);

        let mut transaction = edit::begin(self.database.pool()).await.expect("transaction");
        let owner_name = name_of("owner");
        let tenant = NewTenant {
            id: tenant_id,
            name: &name_of(name),
            display_name: name,
            owner_key: key(&owner_name, Role::Owner, &owner_hash),
            system_application_id: Uuid::now_v7().into(),
        };
        tenants::create(&mut transaction, tenant).await.expect("tenant");
        for (name, role, hash) in
            [("developer", Role::Developer, developer_hash), ("viewer", Role::Viewer, viewer_hash)]
        {
            let name = name_of(name);
            management_keys::create(&mut transaction, tenant_id, key(&name, role, &hash)).await.expect("key");
        }
        resources(&mut transaction, tenant_id, &publish_hash).await;
        transaction.commit().await.expect("commit");
        Tenant { id: tenant_id, owner, developer, viewer, publish }
    }

    /// Sessions of users of the tenant, one of each role. Nobody knows their passwords.
    pub(crate) async fn sessions(&self, tenant: &Tenant) -> Vec<(Role, String)> {
        let keys = session::Keys::new(SESSION_SECRET, None).expect("session keys");
        let mut sessions = Vec::new();
        for role in Role::ALL {
            let email = format!("{role}-of-{}@example.com", tenant.id).parse().expect("address");
            let user = NewUser {
                id: Uuid::now_v7().into(),
                email: &email,
                role: *role,
                password_hash: &Hash::of_nobody(),
            };
            let mut transaction = edit::begin(self.database.pool()).await.expect("transaction");
            let user = users::create(&mut transaction, tenant.id, user).await.expect("user");
            transaction.commit().await.expect("commit");
            let session =
                session::Session { id: Uuid::new_v4().into(), user_id: user.id, credential_version: 1 };
            let issued = keys.issue(session, (self.now)()).expect("a session");
            sessions.push((*role, issued.token.to_string()));
        }
        sessions
    }

    /// How many events are stored.
    pub(crate) async fn stored_events(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM postrider.events");
        count.fetch_one(self.database.pool()).await.expect("count")
    }

    /// An event's body as it stands in the database.
    pub(crate) async fn stored_body(&self, event_id: &str) -> Vec<u8> {
        let id: postrider_core::id::EventId = event_id.parse().expect("event id");
        let body =
            sqlx::query_scalar("SELECT body FROM postrider.events WHERE event_id = $1").bind(id.as_uuid());
        body.fetch_one(self.database.pool()).await.expect("body")
    }
}

impl Apart {
    fn new() -> Self {
        Self(Some(Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")))
    }

    /// What is started meanwhile runs here.
    fn run<T>(&self, start: impl FnOnce() -> T) -> T {
        let _entered = self.0.as_ref().map(Runtime::enter);
        start()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A request with a credential.
pub(crate) fn request(method: Method, path: &str, token: &str) -> http::request::Builder {
    let request = Request::builder().method(method).uri(path).header(header::HOST, HOST);
    request.header(header::AUTHORIZATION, format!("Bearer {token}"))
}

/// Everything a surface needs; events go to `ingest`.
pub(crate) fn settings(pool: PgPool, ingest: impl Into<Entrance>) -> Settings {
    Settings {
        routing: Arc::new(Cache::new(pool.clone())),
        pool,
        ingest: ingest.into(),
        keyring: Arc::new(Keyring::new([1; 32], None).expect("keyring")),
        peppers: peppers(2, [2; 32], None),
        sessions: Some(Arc::new(session::Keys::new(SESSION_SECRET, None).expect("session keys"))),
        refusals: postrider_api::refusals::Refusals::new().0,
        trusted_proxies: Vec::new(),
        bootstrap_token: Some(BOOTSTRAP_TOKEN.into()),
        metrics_token: Some(METRICS_TOKEN.into()),
        url_policy: UrlPolicy::default(),
        address_policy: address::Policy::default(),
        check_origin: Arc::new(guard::check_origin(public)),
        render_metrics: Arc::new(|| "# TYPE something counter\nsomething 1\n".to_owned()),
        build: Build { version: "1.2.3", commit: "0123456" },
        #[expect(clippy::disallowed_methods, reason = "nothing here depends on the time")]
        now: Arc::new(OffsetDateTime::now_utc),
        monotonic: Arc::new(|| Duration::ZERO),
        limiter: None,
        queue: None,
        optional: Vec::new(),
        max_requests_in_flight: None,
        gate: Arc::default(),
        is_draining: Arc::new(|| false),
    }
}

/// Peppers of a generation, and of the one before.
pub(crate) fn peppers(generation: i32, current: [u8; 32], previous: Option<[u8; 32]>) -> Peppers {
    let pepper = |bytes: [u8; 32]| Pepper::new(&bytes).expect("pepper");
    Peppers::new(generation, pepper(current), previous.map(pepper)).expect("peppers")
}

/// Every name leads to a public address.
#[expect(clippy::unnecessary_wraps, reason = "other names do not resolve")]
fn public(_name: &str) -> io::Result<Vec<IpAddr>> {
    Ok(vec![IpAddr::from([93, 184, 215, 14])])
}

/// The application, endpoint and subscription of a tenant.
async fn resources(transaction: &mut PgTransaction<'_>, tenant_id: TenantId, publish_hash: &Hashes) {
    let application =
        NewApplication { id: Uuid::now_v7().into(), name: &name_of("orders"), token_hash: publish_hash };
    let application = applications::create(transaction, tenant_id, application).await.expect("application");
    let endpoint = NewEndpoint {
        id: Uuid::now_v7().into(),
        name: &name_of("warehouse"),
        settings: &endpoints::Settings::new("https://warehouse.example/hooks".to_owned()),
        approval: None,
        key: NewSigningKey {
            id: Uuid::now_v7().into(),
            algorithm: Algorithm::HmacSha256,
            sealed_secret: b"sealed",
        },
    };
    let endpoint = endpoints::create(transaction, tenant_id, endpoint).await.expect("endpoint");
    let subscription = NewSubscription {
        id: Uuid::now_v7().into(),
        name: &name_of("orders-to-warehouse"),
        application_id: application.id,
        endpoint_id: endpoint.id,
        event_types: &["order.*".parse().expect("pattern")],
    };
    subscriptions::create(transaction, tenant_id, subscription).await.expect("subscription");
}

fn key<'a>(name: &'a Name, role: Role, token_hash: &'a Hashes) -> NewManagementKey<'a> {
    NewManagementKey { id: Uuid::now_v7().into(), name, role, token_hash }
}

pub(crate) fn name_of(text: &str) -> Name {
    text.parse().expect("name")
}
