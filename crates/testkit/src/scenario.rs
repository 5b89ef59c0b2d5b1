//! Tenants, applications, endpoints and subscriptions, made in the database so that a test reads as a scenario:
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool) {
//! use postrider_testkit::scenario::Scenario;
//!
//! let acme = Scenario::new(pool).tenant("acme").await;
//! let orders = acme.application("orders").await;
//! let warehouse = acme.endpoint("warehouse", "http://127.0.0.1:9/").create().await;
//! orders.sends(&["order.*"], &warehouse).await;
//! orders.publish("order.created", "{}").await;
//! # }
//! ```
//!
//! Invariant: rows are made by the store's own functions, under keys that every scenario shares, so what is made here
//! is what the product makes.

mod application;
mod credential;
mod endpoint;

use std::sync::Arc;

use postrider_core::{
    id::{ApplicationId, ManagementKeyId, TenantId},
    name::Name,
    pepper::{FIRST_GENERATION, Peppers},
    quota::Settings,
    role::Role,
    seal::{KEY_LENGTH, Keyring},
    token::{Kind, Pepper, Token},
};
use postrider_store::{edit, management_keys::NewManagementKey, tenants};
use sqlx::PgPool;
use uuid::Uuid;

pub use application::{Application, Published, new_event, new_notification};
pub use credential::token_client;
pub use endpoint::{Endpoint, NewEndpoint};

/// The key that scenarios seal secrets under, as 64 hexadecimal characters in `POSTRIDER_ENCRYPTION_KEY`.
pub const ENCRYPTION_KEY: [u8; KEY_LENGTH] = [7; KEY_LENGTH];
/// The pepper that scenarios hash tokens with, as in `POSTRIDER_TOKEN_PEPPER`.
pub const PEPPER: &str = "a pepper for tests, 32 bytes or more";

/// A database to fill.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub pool: PgPool,
}

/// A tenant, and what its owner was shown.
#[derive(Debug, Clone)]
pub struct Tenant {
    pub(crate) pool: PgPool,
    pub id: TenantId,
    pub name: Name,
    pub owner_token: Token,
}

impl Scenario {
    pub fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    pub async fn tenant(&self, name: &str) -> Tenant {
        let name = parsed(name);
        let id = TenantId::from_uuid(Uuid::now_v7());
        let owner_token = fresh_token(Kind::Management);
        let mut transaction = edit::begin(&self.pool).await.expect("a transaction begins");
        let owner_key = NewManagementKey {
            id: ManagementKeyId::from_uuid(Uuid::now_v7()),
            name: &parsed("owner"),
            role: Role::Owner,
            token_hash: &peppers().hashes(&owner_token),
        };
        let new = tenants::NewTenant {
            id,
            name: &name,
            display_name: name.as_str(),
            owner_key,
            system_application_id: ApplicationId::from_uuid(Uuid::now_v7()),
        };
        tenants::create(&mut transaction, new).await.expect("the tenant's name is free");
        transaction.commit().await.expect("the tenant is committed");
        Tenant { pool: self.pool.clone(), id, name, owner_token }
    }
}

impl Tenant {
    pub async fn application(&self, name: &str) -> Application {
        Application::create(self, name).await
    }

    /// Sets the tenant's limits, whatever they were.
    pub async fn limit(&self, limits: &Settings) {
        let mut transaction = edit::begin(&self.pool).await.expect("a transaction begins");
        tenants::lock_limits(&mut transaction, self.id).await.expect("the tenant is locked");
        tenants::set_limits(&mut transaction, self.id, limits, false).await.expect("the tenant exists");
        transaction.commit().await.expect("the limits are committed");
    }

    /// Starts describing an endpoint; [`NewEndpoint::create`] makes it.
    pub fn endpoint(&self, name: &str, url: &str) -> NewEndpoint<'_> {
        NewEndpoint::new(self, name, url)
    }
}

/// The keyring of [`ENCRYPTION_KEY`].
pub fn keyring() -> Arc<Keyring> {
    Arc::new(Keyring::new(ENCRYPTION_KEY, None).expect("one key cannot collide"))
}

/// The pepper of [`PEPPER`], of the first generation.
pub fn peppers() -> Peppers {
    let pepper = Pepper::new(PEPPER.as_bytes()).expect("the pepper is long enough");
    Peppers::new(FIRST_GENERATION, pepper, None).expect("one pepper is no rotation")
}

fn fresh_token(kind: Kind) -> Token {
    Token::mint(kind, random())
}

/// 32 bytes that differ each time; two random UUIDs are random enough for tests.
fn random() -> [u8; 32] {
    let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(first.as_bytes());
    bytes[16..].copy_from_slice(second.as_bytes());
    bytes
}

fn parsed<T: std::str::FromStr>(text: &str) -> T {
    text.parse().ok().unwrap_or_else(|| panic!("`{text}` is no valid name"))
}
